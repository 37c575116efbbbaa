//! Each verb and each refusal, against the server of DATABASE_URL; without one, nothing is tested.

use eskit_lease::{BoxError, Builder, Error, Leases, State};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

type Done = Result<(), BoxError>;

fn dsn() -> Option<String> {
    std::env::var("DATABASE_URL").ok()
}

async fn client(dsn: &str) -> Result<Client, BoxError> {
    let (client, driver) = tokio_postgres::connect(dsn, NoTls).await?;
    tokio::spawn(driver);
    Ok(client)
}

/// Opens a keeper with a short TTL.
async fn open(dsn: &str) -> Result<Leases, Error> {
    Leases::builder(dsn).ttl(Duration::from_secs(3)).open().await
}

/// A name of this test run.
fn name(of: &str) -> String {
    format!("rust-test-{of}-{}", std::process::id())
}

/// Waits until a query answers true.
async fn until(db: &Client, sql: &str, value: &str) -> Done {
    for _ in 0..200 {
        if db.query_one(sql, &[&value]).await?.get(0) {
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Err(format!("never: {sql}").into())
}

#[tokio::test]
async fn leadership_goes_from_one_to_the_next() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (one, two, name) = (open(&dsn).await?, open(&dsn).await?, name("lead"));
    let lead = one.lead(&name).await?;
    assert!(lead.is_trusted() && two.try_lead(&name).await?.is_none());
    assert!(one.try_lead(&name).await?.is_none(), "calls within a process follow one another");
    let waiting = tokio::spawn({
        let (two, name) = (two.clone(), name.clone());
        async move { two.lead(&name).await }
    });
    let db = client(&dsn).await?;
    until(&db, "SELECT EXISTS (SELECT FROM eskit_lease.waiters WHERE resource = $1)", &name).await?;
    let first = lead.fence();
    assert_eq!(two.state(), State::Trusted, "a refusal ends no trust");
    lead.release().await;
    let lead = waiting.await??;
    assert!(lead.fence() > first);
    drop(lead);
    let again = timeout(Duration::from_secs(5), one.lead(&name)).await??;
    again.release().await;
    one.close().await;
    two.close().await;
    Ok(())
}

#[tokio::test]
async fn a_caller_that_stops_waiting_gives_its_place_up() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (one, two, name, db) = (open(&dsn).await?, open(&dsn).await?, name("place"), client(&dsn).await?);
    let lead = one.lead(&name).await?;
    let places = "SELECT count(*) = 1 FROM eskit_lease.waiters WHERE resource = $1";
    tokio::select! {
        _ = two.lead(&name) => return Err("led".into()),
        done = until(&db, places, &name) => done?,
    }
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.waiters WHERE resource = $1", &name).await?;
    lead.release().await;
    sleep(Duration::from_millis(100)).await;
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.leases WHERE resource = $1 AND state = 'held'", &name).await?;
    one.close().await;
    two.close().await;
    Ok(())
}

#[tokio::test]
async fn a_transaction_tells_how_it_ended() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (leases, name, mut db, other) = (open(&dsn).await?, name("tx"), client(&dsn).await?, client(&dsn).await?);
    let lead = leases.lead(&name).await?;
    db.batch_execute("CREATE TEMP TABLE effects (id int PRIMARY KEY)").await?;
    let effect = "INSERT INTO effects VALUES ($1)";
    lead.transaction(&mut db, async |tx| Ok(tx.execute(effect, &[&1]).await?)).await?;

    // An error of the work rolls back, as it is, and as what it is.
    let failed = lead.transaction(&mut db, async |tx| {
        tx.execute(effect, &[&2]).await?;
        Err::<(), _>("mine".into())
    });
    assert!(matches!(failed.await, Err(Error::Other(mine)) if mine.to_string() == "mine"));
    let failed = lead.transaction(&mut db, async |tx| Ok(tx.execute(effect, &[&1]).await?)).await;
    assert!(matches!(&failed, Err(Error::Postgres(_))), "{failed:?}");
    assert_eq!(
        failed.err().and_then(|error| error.code().map(|code| code.code().to_owned())).as_deref(),
        Some("23505")
    );

    // An error that the work has caught is no silent rollback.
    let caught = lead.transaction(&mut db, async |tx| {
        tx.execute(effect, &[&3]).await?;
        let _ = tx.execute(effect, &[&1]).await;
        Ok(())
    });
    assert_eq!(
        caught.await.err().and_then(|error| error.code().map(|code| code.code().to_owned())).as_deref(),
        Some("25P02")
    );
    assert_eq!(db.query_one("SELECT count(*) FROM effects", &[]).await?.get::<_, i64>(0), 1);

    // A fence that was taken away is refused, and the scope ends.
    other.execute("SELECT eskit_lease.lease_force_release($1, $2, 'a test')", &[&name, &lead.fence()]).await?;
    let refused = lead.transaction(&mut db, async |tx| Ok(tx.execute(effect, &[&4]).await?)).await;
    assert!(matches!(&refused, Err(Error::Refused(_) | Error::Lost(_))), "{refused:?}");
    timeout(Duration::from_secs(5), lead.cancelled()).await?;
    let lost = lead.transaction(&mut db, async |_| Ok(())).await;
    assert!(matches!(&lost, Err(Error::Lost(cause)) if cause.fence == Some(lead.fence())), "{lost:?}");
    let tx = db.transaction().await?;
    assert!(matches!(lead.guard(&tx).await, Err(Error::Lost(_))));
    drop(tx);
    lead.release().await;

    // After a commit whose end is unknown, the next fence is another.
    let lead = leases.lead(&name).await?;
    lead.unsure();
    let fence = lead.fence();
    lead.release().await;
    assert!(leases.lead(&name).await?.fence() > fence);
    leases.close().await;
    Ok(())
}

#[tokio::test]
async fn work_that_hangs_ends_with_its_scope() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (leases, mut db) = (open(&dsn).await?, client(&dsn).await?);
    let lead = leases.lead(&name("hang")).await?;
    let hanging = lead.transaction(&mut db, async |tx| Ok(tx.batch_execute("SELECT pg_sleep(60)").await?));
    let (done, ()) = tokio::join!(timeout(Duration::from_secs(5), hanging), async {
        sleep(Duration::from_millis(200)).await;
        leases.close().await;
    });
    assert!(matches!(done?, Err(Error::Lost(_))));
    Ok(())
}

#[tokio::test]
async fn partitions_are_shared_and_begin_anew() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (one, two, group, db) = (open(&dsn).await?, open(&dsn).await?, name("group"), client(&dsn).await?);
    db.execute("SELECT eskit_lease.group_create($1, 4)", &[&group]).await?;
    let applied = Arc::new(Mutex::new(Vec::new()));
    let join = |leases: &Leases| {
        let (dsn, applied) = (dsn.clone(), applied.clone());
        leases.join(&group, move |partition| {
            let (dsn, applied) = (dsn.clone(), applied.clone());
            async move {
                let mut db = client(&dsn).await?;
                let moved = partition.transaction(&mut db, async |tx| {
                    let expected = partition.position(tx).await?;
                    Ok(partition.commit(tx, expected + 1, expected).await?)
                });
                assert!(moved.await?);
                let count = |mut applied: MutexGuard<'_, Vec<_>>| {
                    applied.push((partition.number(), partition.fence()));
                    applied.iter().filter(|(number, _)| *number == partition.number()).count()
                };
                if applied.lock().map_or(0, count) == 1 {
                    return Err("once".into());
                }
                partition.cancelled().await;
                Ok(())
            }
        })
    };
    let (first, second) = (join(&one), join(&two));
    until(
        &db,
        "SELECT count(DISTINCT owner) = 2 AND count(*) = 4 FROM eskit_lease.group_partitions WHERE group_name = $1",
        &group,
    )
    .await?;
    let all = "SELECT count(*) = 4 AND min(position) >= 2 FROM eskit_lease.group_lag WHERE group_name = $1";
    until(&db, all, &group).await?;
    first.stop().await?;
    until(&db, "SELECT count(DISTINCT owner) = 1 FROM eskit_lease.group_partitions WHERE group_name = $1", &group)
        .await?;
    drop(second);
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.group_members WHERE group_name = $1", &group).await?;
    let applied = applied.lock().map_err(|_| "poisoned")?.clone();
    let mut fences: Vec<_> = applied.iter().map(|(_, fence)| fence).collect();
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), applied.len(), "a fence twice");
    let missing = two.join("rust-test-no-such-group", |_| async { Ok(()) }).await;
    assert_eq!(
        missing.err().and_then(|error| error.code().map(|code| code.code().to_owned())).as_deref(),
        Some("42704")
    );
    one.close().await;
    two.close().await;
    db.execute("SELECT eskit_lease.group_drop($1)", &[&group]).await?;
    Ok(())
}

#[tokio::test]
async fn items_are_done_or_tried_again() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (leases, queue, db) = (open(&dsn).await?, name("queue"), client(&dsn).await?);
    db.execute("SELECT eskit_lease.queue_create($1, 3, '10 ms')", &[&queue]).await?;
    let add = "SELECT eskit_lease.item_add($1, jsonb_build_object('n', n)) FROM generate_series(0, 9) AS n";
    db.execute(add, &[&queue]).await?;
    let app = dsn.clone();
    let working = leases.work(&queue, 3, move |item| {
        let app = app.clone();
        async move {
            let mut db = client(&app).await?;
            match (item.payload.as_str(), item.attempt) {
                (r#"{"n": 0}"#, _) => return Ok(()), // never finishes its item
                (r#"{"n": 1}"#, _) => drop(db.execute("SELECT nothing", &[]).await?),
                (r#"{"n": 2}"#, 1) => unreachable!("a panic is a failure, too"),
                _ => item.transaction(&mut db, async |_| Ok(())).await?,
            }
            Ok(())
        }
    });
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.items WHERE queue = $1", &queue).await?;
    let dead = "SELECT count(*) = 2 AND bool_or(error LIKE '%without its item%') AND bool_or(error LIKE '%\"nothing\"%') \
                FROM eskit_lease.dead_items WHERE queue = $1";
    until(&db, dead, &queue).await?;
    working.stop().await?;
    leases.close().await;
    db.execute("SELECT eskit_lease.queue_drop($1, items => true)", &[&queue]).await?;
    Ok(())
}

#[tokio::test]
async fn a_key_runs_once() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (leases, key) = (open(&dsn).await?, name("key"));
    let failed = leases.once(&key, async |_| Err::<&str, _>("at first".into())).await;
    assert!(matches!(failed, Err(Error::Other(_))));
    let unsure = name("unsure");
    let failed = leases.once(&unsure, async |_| Err::<&str, _>(Error::Unsure(Default::default()).into())).await;
    assert!(matches!(failed, Err(Error::Unsure(_))));
    assert_eq!(leases.once(&unsure, async |_| Ok("null")).await?.state, "failed");
    let (one, two) = tokio::join!(leases.once(&key, async |_| Ok("[1]")), leases.once(&key, async |_| Ok("[2]")));
    let (one, two) = (one?, two?);
    assert!(one.first != two.first && one.result == two.result && two.state == "done", "{one:?} {two:?}");
    let (key, db) = (name("dropped"), client(&dsn).await?);
    let never = leases.once(&key, async |_| {
        sleep(Duration::from_secs(60)).await;
        Ok("null")
    });
    assert!(timeout(Duration::from_millis(300), never).await.is_err());
    until(&db, "SELECT state = 'failed' FROM eskit_lease.executions WHERE key = $1", &key).await?;
    assert_eq!(leases.once(&key, async |_| Ok("null")).await?.state, "failed");
    leases.close().await;
    Ok(())
}

#[tokio::test]
async fn news_of_a_table_ends_the_wait() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (db, table) = (client(&dsn).await?, name("events").replace('-', "_"));
    let create = "(position bigint PRIMARY KEY DEFAULT eskit_lease.position_next())";
    db.batch_execute(&format!("CREATE TABLE {table} {create}")).await?;
    let leases = Leases::builder(&dsn).ttl(Duration::from_secs(30)).watch(&table).open().await?;
    let lead = leases.lead(&name("news")).await?;
    while timeout(Duration::from_millis(500), lead.news()).await.is_ok() {}
    let insert = format!("INSERT INTO {table} DEFAULT VALUES");
    let (told, inserted) = tokio::join!(timeout(Duration::from_secs(5), lead.news()), db.batch_execute(&insert));
    told?;
    inserted?;
    leases.close().await;
    timeout(Duration::from_secs(1), lead.news()).await?;
    db.batch_execute(&format!("DROP TABLE {table}")).await?;
    Ok(())
}

#[tokio::test]
async fn the_end_is_clear() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let states = Arc::new(Mutex::new(Vec::new()));
    let told = states.clone();
    let on_state = move |state| drop(told.lock().map(|mut told| told.push(state)));
    let leases = Leases::builder(&dsn).on_state(on_state).open().await?;
    let (session, db) = (leases.session().ok_or("no session")?, client(&dsn).await?);
    let lead = leases.lead(&name("end")).await?;
    let draining = tokio::spawn({
        let leases = leases.clone();
        async move { leases.drain(Duration::from_secs(20)).await }
    });
    timeout(Duration::from_secs(5), lead.cancelled()).await?;
    assert!(lead.is_trusted(), "what has begun may finish");
    let mut own = client(&dsn).await?;
    lead.transaction(&mut own, async |_| Ok(())).await?;
    lead.release().await;
    timeout(Duration::from_secs(5), draining).await??;
    assert!(matches!(leases.lead("x").await, Err(Error::Closed)));
    assert!(matches!(leases.try_lead("x").await, Err(Error::Closed)));
    assert!(matches!(leases.once("x", async |_| Ok("null")).await, Err(Error::Closed)));
    leases.join("x", |_| async { Ok(()) }).await?;
    leases.close().await;
    leases.drain(Duration::from_secs(1)).await;
    until(&db, "SELECT NOT EXISTS (SELECT FROM eskit_lease.sessions WHERE session::text = $1)", &session).await?;
    let states = states.lock().map_err(|_| "poisoned")?.clone();
    assert_eq!(states, [State::Trusted, State::Draining, State::Closed]);

    // A keeper that is dropped closes in the background.
    let leases = open(&dsn).await?;
    let session = leases.session().ok_or("no session")?;
    drop(leases);
    until(&db, "SELECT NOT EXISTS (SELECT FROM eskit_lease.sessions WHERE session::text = $1)", &session).await
}

#[tokio::test]
async fn what_cannot_be_opened_says_why() -> Done {
    let taken = Leases::builder("host=localhost").takeover(true).open().await;
    assert!(matches!(taken, Err(Error::Misuse(_))));
    assert!(matches!(Leases::builder("no=such").open().await, Err(Error::Postgres(_))));
    assert!(matches!(Leases::builder("sslmode=perhaps").open().await, Err(Error::Misuse(_))));
    let refused = Builder::with_connect(|| tokio_postgres::connect("host=127.0.0.1 port=1 user=x", NoTls));
    let refused = refused.patience(Duration::from_millis(300)).open().await;
    assert!(matches!(refused, Err(Error::Postgres(_))));
    let panics = Builder::with_connect(|| async {
        assert!(std::process::id() == 0, "a panic of the test");
        tokio_postgres::connect("", NoTls).await
    });
    let panics = panics.patience(Duration::from_millis(300)).open().await;
    assert!(matches!(panics, Err(Error::Other(panic)) if panic.to_string().contains("panic")));
    Ok(())
}

#[tokio::test]
async fn a_connection_that_is_being_made_has_a_deadline_and_is_closed() -> Done {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let dsn = format!("postgresql://x@{}/x", silent.local_addr()?);
    let began = Instant::now();
    // The keeper gives the first try up after half of the TTL, and is closed while it makes the second.
    let opening = Leases::builder(&dsn).ttl(Duration::from_secs(2)).patience(Duration::from_millis(1_500)).open();
    let failed = opening.await;
    assert!(matches!(&failed, Err(Error::Other(error)) if error.to_string().contains("timed out")));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    for _ in 0..2 {
        let (mut made, _) = timeout(Duration::from_secs(1), silent.accept()).await??;
        timeout(Duration::from_secs(1), made.read_to_end(&mut Vec::new())).await??;
    }
    assert!(timeout(Duration::from_millis(500), silent.accept()).await.is_err(), "it connects after its end");
    Ok(())
}

#[tokio::test]
async fn a_table_that_cannot_be_watched_is_told_and_ends_no_trust() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (db, table) = (client(&dsn).await?, name("unwatched").replace('-', "_"));
    let opened = Leases::builder(&dsn).watch(&table).open().await;
    let code = opened.err().and_then(|error| error.code().map(|code| code.code().to_owned()));
    assert_eq!(code.as_deref(), Some("42P01"));

    db.batch_execute(&format!("CREATE TABLE {table} (position bigint DEFAULT eskit_lease.position_next())")).await?;
    let own = format!("{dsn}{}application_name={table}", if dsn.contains('?') { '&' } else { '?' });
    let leases = Leases::builder(&own).ttl(Duration::from_secs(2)).watch(&table).open().await?;
    let lead = leases.lead(&table).await?;
    db.batch_execute(&format!("DROP TABLE {table}")).await?;
    let cut = "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE application_name = $1";
    until(&db, cut, &table).await?;
    sleep(Duration::from_secs(3)).await;
    assert!(lead.is_trusted() && leases.state() == State::Trusted);
    leases.close().await;
    Ok(())
}

#[tokio::test]
async fn a_lease_that_was_taken_away_is_not_kept_under_another_fence() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (leases, name, db) = (open(&dsn).await?, name("taken"), client(&dsn).await?);
    let lead = leases.lead(&name).await?;
    let take = "SELECT eskit_lease.lease_force_release($1, $2, 'a test')";
    db.execute(take, &[&name, &lead.fence()]).await?;
    timeout(Duration::from_secs(5), lead.cancelled()).await?; // it has asked, and has got a fence that is not its own
    assert!(!lead.is_trusted());
    lead.release().await;
    let has = "SELECT NOT EXISTS (SELECT FROM eskit_lease.leases WHERE resource = $1 AND state = 'held')
               AND NOT EXISTS (SELECT FROM eskit_lease.waiters WHERE resource = $1)";
    assert!(db.query_one(has, &[&name]).await?.get::<_, bool>(0));
    leases.close().await;
    Ok(())
}

/// A fenced transaction of a holder that is gone is in the way, and nobody is told of its end.
#[tokio::test]
async fn a_refusal_that_gives_no_place_is_asked_again() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (mut gone, db, name) = (client(&dsn).await?, client(&dsn).await?, name("busy"));
    let open = "SELECT a.fence FROM eskit_lease.session_open('gone', '1 s') AS s, eskit_lease.lease_acquire($1, s.session) AS a";
    let fence: i64 = db.query_one(open, &[&name]).await?.get(0);
    gone.batch_execute("SET idle_in_transaction_session_timeout = 0").await?;
    let tx = gone.transaction().await?;
    tx.execute("SELECT eskit_lease.fence_check($1, $2)", &[&name, &fence]).await?;
    sleep(Duration::from_millis(1_500)).await;
    let leases = Leases::builder(&dsn).ttl(Duration::from_secs(600)).open().await?;
    let leading = leases.lead(&name);
    let (lead, committed) = tokio::join!(timeout(Duration::from_secs(5), leading), async {
        sleep(Duration::from_millis(500)).await;
        tx.commit().await
    });
    committed?;
    lead??.release().await;
    leases.close().await;
    Ok(())
}

/// A network in front of the server, which breaks the first connections that make a certain call, after the call.
async fn losing(dsn: &str, call: &'static str, times: usize) -> Result<String, BoxError> {
    let (before, host) = dsn.rsplit_once('@').ok_or("no user in DATABASE_URL")?;
    let (host, database) = host.split_once('/').ok_or("no database in DATABASE_URL")?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let link = format!("{before}@{}/{database}", listener.local_addr()?);
    let (host, left) = (host.to_owned(), Arc::new(AtomicUsize::new(times)));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (host, left) = (host.clone(), left.clone());
            tokio::spawn(async move {
                let mut server = TcpStream::connect(host).await?;
                let (mut asked, mut answered) = ([0; 8192], [0; 8192]);
                loop {
                    tokio::select! {
                        length = client.read(&mut asked) => {
                            let data = &asked[..length?];
                            server.write_all(data).await?;
                            let calls = data.windows(call.len()).any(|part| part == call.as_bytes());
                            let lost = calls && left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
                            if lost || data.is_empty() {
                                sleep(Duration::from_millis(100)).await; // the server commits
                                return Ok::<_, std::io::Error>(());
                            }
                        }
                        length = server.read(&mut answered) => match length? {
                            0 => return Ok(()),
                            length => client.write_all(&answered[..length]).await?,
                        },
                    }
                }
            });
        }
    });
    Ok(link)
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_keeps_no_item() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (queue, db) = (name("lost"), client(&dsn).await?);
    db.execute("SELECT eskit_lease.queue_create($1)", &[&queue]).await?;
    // Once as a reader of the views, and once as a role that may only work.
    let role = name("role").replace('-', "_");
    db.batch_execute(&format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'test'; SELECT eskit_lease.grant_consumer('{role}');"
    ))
    .await?;
    let (scheme, host) = dsn.rsplit_once('@').ok_or("no user in DATABASE_URL")?;
    let scheme = scheme.split_once("://").ok_or("no URL")?.0;
    for dsn in [dsn.clone(), format!("{scheme}://{role}:test@{host}")] {
        let add = "SELECT eskit_lease.item_add($1, jsonb_build_object('n', n)) FROM generate_series(1, 6) AS n";
        db.execute(add, &[&queue]).await?;
        let leases = Leases::builder(&losing(&dsn, "item_claim(", 2).await?).ttl(Duration::from_secs(5)).open().await?;
        let app = dsn.clone();
        let working = leases.work(&queue, 2, move |item| {
            let app = app.clone();
            async move { Ok(item.transaction(&mut client(&app).await?, async |_| Ok(())).await?) }
        });
        until(&db, "SELECT count(*) = 0 FROM eskit_lease.items WHERE queue = $1", &queue).await?;
        working.stop().await?;
        leases.close().await;
    }
    db.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
    db.execute("SELECT eskit_lease.queue_drop($1, items => true)", &[&queue]).await?;
    Ok(())
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_repeated() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (lead, key, db) = (name("repeated"), name("repeated-key"), client(&dsn).await?);
    let leases = open(&losing(&dsn, "lease_acquire(", 1).await?).await?;
    leases.lead(&lead).await?.release().await;
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.leases WHERE resource = $1 AND state = 'held'", &lead).await?;
    leases.close().await;
    let leases = open(&losing(&dsn, "lease_release(", 1).await?).await?;
    leases.lead(&lead).await?.release().await;
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.leases WHERE resource = $1 AND state = 'held'", &lead).await?;
    leases.close().await;
    for call in ["execution_begin(", "execution_finish("] {
        let leases = open(&losing(&dsn, call, 1).await?).await?;
        let (key, mut calls) = (format!("{key}{call}"), 0);
        let once = leases.once(&key, async |_| {
            calls += 1;
            Ok("null")
        });
        assert!(once.await?.first && calls == 1);
        leases.close().await;
    }
    Ok(())
}
