//! What pgrx-tests needs to know about the server in which the `#[pg_test]`s run.

pub fn setup(_options: Vec<&str>) {}

pub fn postgresql_conf_options() -> Vec<&'static str> {
    vec!["shared_preload_libraries = 'eskit_lease'", "max_prepared_transactions = 20"]
}

/// What is easier shown from inside the server than through SQL.
#[cfg(feature = "pg_test")]
#[pgrx::pg_schema]
mod tests {
    use crate::base::interval;
    use crate::call::{Call, enter};
    use crate::lease::row::{Leases, Probe};
    use crate::lease::{acquire, fence};
    use crate::pg::guard::{Guard, Mode};
    use crate::pg::table::Locked;
    use crate::pg::text::{Text, text_datum};
    use crate::session::{self, New};
    use pgrx::FromDatum;
    use pgrx::datum::Interval;
    use pgrx::prelude::*;

    fn call() -> Call {
        enter().and_then(Call::open).unwrap_or_else(|report| pgrx::error!("{}", report.message()))
    }

    fn acquire(call: &Call, resource: &str) -> i64 {
        let at = session::open(call, New::of(call, "tester", 10_000));
        let answers = at.and_then(|at| acquire::acquire(call, at, &[resource.to_owned()], false));
        answers.ok().and_then(|mut answers| answers.pop()).and_then(|answer| answer.fence).unwrap_or(0)
    }

    #[pg_test]
    fn text_comes_back() {
        for text in ["", "sub:orders", "café", "\u{1F600}", &"x".repeat(1_000_000)] {
            // SAFETY: the datum is a text
            let back = unsafe { Text::from_datum(text_datum(text), false) };
            assert_eq!(back.as_deref(), Some(text));
        }
    }

    #[pg_test]
    fn guards_are_outside_of_users_keys() {
        assert!(Guard::Fence(42).try_lock(Mode::Exclusive));
        let users = Spi::get_one::<i64>(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid IN (1, 2) AND pid = pg_backend_pid()",
        );
        assert_eq!(users, Ok(Some(0)));
        Guard::Fence(42).unlock(Mode::Exclusive);
        assert!(Guard::Fence(42).is_free());
    }

    #[pg_test]
    fn fences_start_above_all_history() {
        let call = call();
        fence::raise(&call);
        let floor = Spi::get_one::<i64>(
            "SELECT (floor(extract(epoch FROM clock_timestamp()) - 1735689600)::bigint << 22) FROM pg_class LIMIT 1",
        );
        assert!(acquire(&call, "raised") > floor.ok().flatten().unwrap_or(i64::MAX));
        assert!(acquire(&call, "raised too") < 1 << 53);
    }

    #[pg_test]
    fn a_probe_sees_what_stands() {
        let call = call();
        assert!(matches!(Leases::open().probe("probed", 0), Probe::Absent));
        let fence = acquire(&call, "probed");
        let Probe::Row(row) = Leases::open().probe("probed", 0) else { pgrx::error!("no row") };
        assert_eq!(row.fence, fence);
        assert!(row.session.is_some());
        assert_eq!(Leases::open().lock(row.tid, false), Locked::Mine);
        assert!(matches!(Leases::open().probe("probe", 0), Probe::Absent));
    }

    #[pg_test]
    fn intervals_have_limits() {
        assert_eq!(interval::ttl_ms(None).ok(), Some(10_000));
        assert_eq!(interval::ttl_ms(Some(Interval::from_seconds(1.5))).ok(), Some(1_500));
        assert!(interval::ttl_ms(Some(Interval::from_micros(999))).is_err());
        assert!(interval::ttl_ms(Some(Interval::from_months(i32::MAX))).is_err());
        assert!(interval::grace_ms("grace", Interval::from_micros(-1_000)).is_err());
        assert_eq!(interval::wait_ms(Some(Interval::from_days(1))).ok(), Some(10_000));
    }

    #[pg_test]
    fn a_lost_fence_is_caught_by_its_sqlstate() {
        let state = Spi::connect_mut(|client| {
            client.update(
                "DO $$ BEGIN PERFORM eskit_lease.fence_check('nothing', 1); \
                 EXCEPTION WHEN SQLSTATE 'LF001' THEN PERFORM set_config('tests.seen', SQLSTATE, true); END $$",
                None,
                &[],
            )?;
            client.select("SELECT current_setting('tests.seen', true)", None, &[])?.first().get_one::<String>()
        });
        assert_eq!(state, Ok(Some("LF001".to_owned())));
    }
}
