//! Each verb and each refusal, against the server of DATABASE_URL; without one, nothing is tested.

use eskit_lease::{BoxError, Builder, Error, Leases, State};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
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
    let missing = two.join("rust-test-no-such-group", |_| async { Ok(()) }).await.err().ok_or("joined")?;
    assert_eq!(missing.code().map(SqlState::code), Some("42704"));
    let told = missing.to_string();
    assert!(told.contains("does not exist") && told.contains("HINT: "), "{told}");
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

/// The first watches say that the session has ended.
#[tokio::test]
async fn a_session_that_ends_while_the_keeper_opens_is_replaced() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (db, table) = (client(&dsn).await?, name("opening").replace('-', "_"));
    db.batch_execute(&format!("CREATE TABLE {table} (position bigint DEFAULT eskit_lease.position_next())")).await?;
    let (link, left) = harming(&dsn, "session_watch(", 2, Harm::Refuse).await?;
    let leases = Leases::builder(&link).watch(&table).open().await?;
    assert_eq!(left.load(Relaxed), 0);
    leases.close().await;
    db.batch_execute(&format!("DROP TABLE {table}")).await?;
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

/// What a network in front of the server does to a call.
#[derive(Clone, Copy, PartialEq)]
enum Harm {
    Lose,    // breaks the connection after the call
    Hold,    // is silent from the call on
    Corrupt, // the server knows no such function
    Refuse,  // the server raises 55000
}

/// A network in front of the server, which harms the first calls of a function. Also returns how many are left.
async fn harming(
    dsn: &str,
    call: &'static str,
    times: usize,
    harm: Harm,
) -> Result<(String, Arc<AtomicUsize>), BoxError> {
    let (before, host) = dsn.rsplit_once('@').ok_or("no user in DATABASE_URL")?;
    let (host, database) = host.split_once('/').ok_or("no database in DATABASE_URL")?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let link = format!("{before}@{}/{database}", listener.local_addr()?);
    let (host, counted) = (host.to_owned(), Arc::new(AtomicUsize::new(times)));
    let left = counted.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (host, left) = (host.clone(), left.clone());
            tokio::spawn(async move {
                let mut server = TcpStream::connect(host).await?;
                let (mut asked, mut answered) = ([0; 8192], [0; 8192]);
                loop {
                    tokio::select! {
                        length = client.read(&mut asked) => {
                            let data = &mut asked[..length?];
                            let calls = data.windows(call.len()).position(|part| part == call.as_bytes());
                            let harmed = calls
                                .filter(|_| left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok());
                            if let (Some(at), Harm::Corrupt) = (harmed, harm) {
                                data[at] = b'x';
                            }
                            if let (Some(at), Harm::Refuse) = (harmed, harm) {
                                let begin = data[..at].windows(6).rposition(|word| word == b"SELECT").unwrap_or(at);
                                data[begin..at + call.len()].fill(b' ');
                                data[begin..begin + 19].copy_from_slice(b"SELECT lastval() --");
                            }
                            if harmed.is_some() && harm == Harm::Hold {
                                std::future::pending::<()>().await;
                            }
                            server.write_all(data).await?;
                            if harmed.is_some() && harm == Harm::Lose || data.is_empty() {
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
    Ok((link, counted))
}

/// A network that breaks the first connections that make a certain call, after the call.
async fn losing(dsn: &str, call: &'static str, times: usize) -> Result<String, BoxError> {
    Ok(harming(dsn, call, times, Harm::Lose).await?.0)
}

/// Makes a role that may work, and see nothing. Returns its name, and its connection string.
async fn consumer(db: &Client, dsn: &str, of: &str) -> Result<(String, String), BoxError> {
    let role = name(of).replace('-', "_");
    let grant = format!("SELECT eskit_lease.grant_consumer('{role}')");
    db.batch_execute(&format!("CREATE ROLE {role} LOGIN PASSWORD 'test'; {grant}")).await?;
    let (scheme, host) = dsn.rsplit_once('@').ok_or("no user in DATABASE_URL")?;
    let scheme = scheme.split_once("://").ok_or("no URL")?.0;
    let own = format!("{scheme}://{role}:test@{host}");
    Ok((role, own))
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_keeps_no_item() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (queue, db) = (name("lost"), client(&dsn).await?);
    db.execute("SELECT eskit_lease.queue_create($1)", &[&queue]).await?;
    // Once as a reader of the views, and once as a role that may only work.
    let (role, own) = consumer(&db, &dsn, "role").await?;
    for dsn in [dsn.clone(), own] {
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

#[tokio::test]
async fn what_the_server_cannot_store_leaves_nothing_behind() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (leases, db) = (open(&dsn).await?, client(&dsn).await?);
    for (at, result) in ["sent to bob", r#""\u0000""#, "\0", "NaN"].into_iter().enumerate() {
        let (key, mut calls) = (name(&format!("result-{at}")), 0);
        let refused = leases.once(&key, async |_| {
            calls += 1;
            Ok(result)
        });
        assert!(matches!(refused.await, Err(Error::Postgres(_))), "{result}");
        let again = leases.once(&key, async |_| {
            calls += 1;
            Ok("null")
        });
        assert_eq!((&*again.await?.state, calls), ("failed", 1), "{result}");
    }
    let key = name("error");
    assert!(leases.once(&key, async |_| Err::<&str, _>("a\0b".into())).await.is_err());
    assert!(leases.once(&key, async |_| Ok("null")).await?.first);

    let queue = name("error");
    db.execute("SELECT eskit_lease.queue_create($1, 1)", &[&queue]).await?;
    db.execute("SELECT eskit_lease.item_add($1, '1')", &[&queue]).await?;
    let working = leases.work(&queue, 1, |_| async { Err("a\0b".into()) });
    let dead = "SELECT count(*) = 1 AND min(error) = E'a\\uFFFDb' FROM eskit_lease.dead_items WHERE queue = $1";
    until(&db, dead, &queue).await?;
    working.stop().await?;
    leases.close().await;
    db.execute("SELECT eskit_lease.queue_drop($1, items => true)", &[&queue]).await?;
    Ok(())
}

/// A database whose encoding lacks a letter of an error.
#[tokio::test]
async fn an_error_that_cannot_be_stored_is_told_by_another_text() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (db, base) = (client(&dsn).await?, name("latin"));
    db.batch_execute(&format!("CREATE DATABASE \"{base}\" ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")).await?;
    let dsn = format!("{}/{base}", dsn.rsplit_once('/').ok_or("no database in DATABASE_URL")?.0);
    let other = client(&dsn).await?;
    other.batch_execute("CREATE EXTENSION eskit_lease; SELECT eskit_lease.queue_create('q', 1)").await?;
    other.batch_execute("SELECT eskit_lease.item_add('q', '1')").await?;
    let leases = open(&dsn).await?;
    let working = leases.work("q", 1, |_| async { Err("\u{2603}".into()) });
    let dead =
        "SELECT count(*) = 1 AND min(error) LIKE '%could not be stored' FROM eskit_lease.dead_items WHERE queue = $1";
    until(&other, dead, "q").await?;
    working.stop().await?;
    assert!(leases.once("k", async |_| Err::<&str, _>("\u{2603}".into())).await.is_err());
    assert!(leases.once("k", async |_| Ok("null")).await?.first);
    leases.close().await;
    drop(other);
    db.batch_execute(&format!("DROP DATABASE \"{base}\" WITH (FORCE)")).await?;
    Ok(())
}

/// The future of each verb is dropped while the answer of its call is lost.
#[tokio::test]
async fn what_a_dropped_call_has_taken_is_given_back() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (name, db) = (name("left"), client(&dsn).await?);
    db.execute("SELECT eskit_lease.group_create($1, 2)", &[&name]).await?;
    db.execute("SELECT eskit_lease.queue_create($1)", &[&name]).await?;
    db.execute("SELECT eskit_lease.item_add($1, '1')", &[&name]).await?;
    let held = "SELECT count(*) = 0 FROM eskit_lease.leases WHERE resource = $1 AND state = 'held'";
    for (verb, call, gone) in [
        ("lead", "lease_acquire(", held),
        ("try_lead", "lease_acquire(", held),
        (
            "once",
            "execution_begin(",
            "SELECT EXISTS (SELECT FROM eskit_lease.executions WHERE key = $1 AND state = 'retry')",
        ),
        ("join", "group_join(", "SELECT count(*) = 0 FROM eskit_lease.group_members WHERE group_name = $1"),
        ("join", "group_assignment(", "SELECT count(*) = 0 FROM eskit_lease.group_members WHERE group_name = $1"),
        ("work", "item_claim(", "SELECT bool_and(state = 'ready') FROM eskit_lease.items WHERE queue = $1"),
    ] {
        let (link, left) = harming(&dsn, call, 1, Harm::Lose).await?;
        let leases = Leases::builder(&link).ttl(Duration::from_secs(60)).open().await?;
        let session = leases.session();
        let lost = async {
            while left.load(Relaxed) > 0 {
                sleep(Duration::from_millis(5)).await;
            }
            sleep(Duration::from_millis(50)).await;
        };
        let verb_ends = async {
            match verb {
                "lead" => drop(leases.lead(&name).await),
                "try_lead" => drop(leases.try_lead(&name).await),
                "once" => drop(leases.once(&name, async |_| Ok("null")).await),
                "join" => {
                    let work = |part: eskit_lease::Partition| async move {
                        part.cancelled().await;
                        Ok(())
                    };
                    drop(leases.join(&name, work).await)
                }
                _ => drop(leases.work(&name, 1, |_| std::future::pending()).await),
            }
        };
        tokio::select! {
            () = verb_ends => return Err(format!("{verb} has ended").into()),
            () = lost => (),
        }
        sleep(Duration::from_millis(400)).await; // the call is repeated
        until(&db, gone, &name).await.map_err(|error| format!("{verb}: {error}"))?;
        assert_eq!(leases.session(), session, "{verb}");
        leases.close().await;
    }
    db.execute("SELECT eskit_lease.group_drop($1)", &[&name]).await?;
    db.execute("SELECT eskit_lease.queue_drop($1, items => true)", &[&name]).await?;
    Ok(())
}

#[tokio::test]
async fn a_close_and_a_drain_go_on_without_their_caller() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let db = client(&dsn).await?;
    for drains in [false, true] {
        let leases = Leases::builder(&dsn).ttl(Duration::from_secs(60)).open().await?;
        let session = leases.session().ok_or("no session")?;
        let ending = async {
            match drains {
                true => leases.drain(Duration::from_secs(1)).await,
                false => leases.close().await,
            }
        };
        assert!(timeout(Duration::from_micros(1), ending).await.is_err());
        let ended = "SELECT NOT EXISTS (SELECT FROM eskit_lease.sessions WHERE session::text = $1)";
        until(&db, ended, &session).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_key_whose_finish_is_not_answered_before_a_close_is_not_told_as_done() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let link = harming(&dsn, "execution_finish(", 100, Harm::Hold).await?.0;
    let (leases, key) = (open(&link).await?, name("unfinished"));
    let keys = [0, 1, 2, 3].map(|each| format!("{key}-{each}"));
    let [a, b, c, d] = keys.each_ref().map(|key| leases.once(key, async |_| Ok("1")));
    let close = async {
        sleep(Duration::from_millis(300)).await;
        leases.close().await;
    };
    let (a, b, c, d, ()) = tokio::join!(a, b, c, d, close);
    assert!([&a, &b, &c, &d].iter().all(|once| once.is_err()), "{a:?} {b:?} {c:?} {d:?}");
    Ok(())
}

#[tokio::test]
async fn an_error_of_the_assignment_does_not_end_the_member() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (group, db) = (name("assigned"), client(&dsn).await?);
    db.execute("SELECT eskit_lease.group_create($1, 1)", &[&group]).await?;
    let (link, _) = harming(&dsn, "group_assignment(", 1, Harm::Corrupt).await?;
    let leases = open(&link).await?;
    let member = leases.join(&group, |partition| async move {
        partition.cancelled().await;
        Ok(())
    });
    let owned = "SELECT count(owner) = 1 FROM eskit_lease.group_partitions WHERE group_name = $1";
    until(&db, owned, &group).await?;
    member.stop().await?;
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.group_members WHERE group_name = $1", &group).await?;
    leases.close().await;
    db.execute("SELECT eskit_lease.group_drop($1)", &[&group]).await?;
    Ok(())
}

/// Neither a refusal that passes nor a connection that ended while it was idle costs the session of a role that cannot see
/// what it has claimed; and a claim whose answer is lost costs no pause.
#[tokio::test]
async fn a_claim_seldom_costs_the_session() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (queue, db, mut other) = (name("costs"), client(&dsn).await?, client(&dsn).await?);
    let (role, own) = consumer(&db, &dsn, "costs").await?;
    db.batch_execute(&format!("ALTER ROLE {role} SET lock_timeout = '50 ms'")).await?;
    db.execute("SELECT eskit_lease.queue_create($1)", &[&queue]).await?;
    let (link, left) = harming(&own, "item_claim(", 0, Harm::Lose).await?;
    let (states, app) = (Arc::new(Mutex::new(Vec::new())), own.clone());
    let told = states.clone();
    let on_state = move |state| drop(told.lock().map(|mut told| told.push((state, Instant::now()))));
    let leases = Leases::builder(&link).ttl(Duration::from_secs(9)).on_state(on_state).open().await?;
    let (session, add) = (leases.session(), "SELECT eskit_lease.item_add($1, '1')");
    db.execute(add, &[&queue]).await?;
    let locked = other.transaction().await?;
    locked.batch_execute("LOCK TABLE eskit_lease._items").await?;
    let working = leases.work(&queue, 2, move |item| {
        let app = app.clone();
        async move { Ok(item.transaction(&mut client(&app).await?, async |_| Ok(())).await?) }
    });
    sleep(Duration::from_millis(500)).await;
    locked.rollback().await?;
    let none = "SELECT count(*) = 0 FROM eskit_lease.items WHERE queue = $1";
    until(&db, none, &queue).await?;
    assert_eq!(leases.session(), session, "after a refusal");

    let cut = "SELECT count(pg_terminate_backend(pid)) = 1 FROM pg_stat_activity
               WHERE usename = $1 AND state = 'idle' AND query LIKE '%item_claim(%'";
    until(&db, cut, &role).await?;
    sleep(Duration::from_millis(100)).await;
    db.execute(add, &[&queue]).await?;
    until(&db, none, &queue).await?;
    assert_eq!(leases.session(), session, "after the end of an idle connection");

    left.store(1, Relaxed);
    db.execute(add, &[&queue]).await?;
    until(&db, none, &queue).await?;
    working.stop().await?;
    leases.close().await;
    let states = states.lock().map_err(|_| "poisoned")?.clone();
    let lost = states.iter().position(|(state, _)| *state == State::Lost).ok_or("it has kept its session")?;
    let pause = states[lost + 1].1 - states[lost].1;
    assert!(pause < Duration::from_millis(400), "{pause:?}");
    db.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
    db.execute("SELECT eskit_lease.queue_drop($1, items => true)", &[&queue]).await?;
    Ok(())
}

/// The server refuses a release, and then also the one that needs no fence.
#[tokio::test]
async fn a_fence_whose_release_is_refused_begins_no_other_scope() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    for refusals in [1, 2] {
        let (link, left) = harming(&dsn, "lease_release", refusals, Harm::Corrupt).await?;
        let (leases, name) = (open(&link).await?, name(&format!("refused-{refusals}")));
        let lead = leases.lead(&name).await?;
        let first = lead.fence();
        lead.release().await;
        let lead = timeout(Duration::from_secs(5), leases.lead(&name)).await??;
        let second = lead.fence();
        assert!(second > first && left.load(Relaxed) == 0, "{refusals}: {first} {second}");
        left.store(refusals, Relaxed);
        lead.release().await;
        let lead = timeout(Duration::from_secs(5), leases.try_lead(&name)).await??.ok_or("not led")?;
        assert!(lead.fence() > second && left.load(Relaxed) == 0, "{refusals}: {second} {}", lead.fence());
        leases.close().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_lease_under_another_fence_is_given_back_at_the_end() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (leases, name, db) = (open(&dsn).await?, name("other"), client(&dsn).await?);
    let lead = leases.lead(&name).await?;
    lead.unsure(); // so that it does not ask
    db.execute("SELECT eskit_lease.lease_force_release($1, $2, 'a test')", &[&name, &lead.fence()]).await?;
    let take = "SELECT eskit_lease.lease_acquire($1, session) FROM eskit_lease.sessions WHERE session::text = $2";
    db.execute(take, &[&name, &lead.session()]).await?;
    lead.release().await;
    let held = "SELECT count(*) FROM eskit_lease.leases WHERE resource = $1 AND state = 'held'";
    assert_eq!(db.query_one(held, &[&name]).await?.get::<_, i64>(0), 0);
    leases.close().await;
    Ok(())
}

#[tokio::test]
async fn a_partition_whose_release_is_refused_begins_under_another_fence() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (group, db) = (name("kept"), client(&dsn).await?);
    db.execute("SELECT eskit_lease.group_create($1, 1)", &[&group]).await?;
    let leases = open(&harming(&dsn, "group_release(", 2, Harm::Corrupt).await?.0).await?;
    let fences = Arc::new(Mutex::new(Vec::new()));
    let told = fences.clone();
    let member = leases.join(&group, move |partition| {
        let begun = told.lock().map_or(0, |mut told| {
            told.push(partition.fence());
            told.len()
        });
        async move {
            if begun > 1 {
                partition.cancelled().await;
            }
            Ok(())
        }
    });
    let begun = || fences.lock().map_or(0, |fences| fences.len());
    timeout(Duration::from_secs(10), async {
        while begun() < 2 {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await?;
    member.stop().await?;
    let fences = fences.lock().map_err(|_| "poisoned")?.clone();
    assert!(fences[1] > fences[0], "{fences:?}");
    leases.close().await;
    db.execute("SELECT eskit_lease.group_drop($1)", &[&group]).await?;
    Ok(())
}

/// The server refuses the result of a key, and then as often that it has failed.
#[tokio::test]
async fn a_key_of_whose_end_the_server_hears_nothing_does_not_run_again() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (link, left) = harming(&dsn, "execution_f", 5, Harm::Corrupt).await?;
    let (leases, key, mut runs) = (open(&link).await?, name("unheard"), 0);
    let once = leases.once(&key, async |_| {
        runs += 1;
        Ok("1")
    });
    assert!(matches!(once.await, Err(Error::Postgres(_))));
    for state in ["running", "failed", "failed"] {
        let again = leases.once(&key, async |_| {
            runs += 1;
            Ok("2")
        });
        let again = again.await?;
        assert_eq!((again.first, &*again.state), (false, state));
    }
    assert_eq!((runs, left.load(Relaxed)), (1, 0));
    leases.close().await;
    Ok(())
}

#[tokio::test]
async fn a_try_does_not_wait() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (link, left) = harming(&dsn, "lease_acquire(", 1_000, Harm::Refuse).await?;
    let (leases, name) = (Leases::builder(&link).ttl(Duration::from_secs(60)).open().await?, name("try"));
    let refused = timeout(Duration::from_secs(5), leases.try_lead(&name)).await?;
    assert_eq!(
        refused.err().and_then(|error| error.code().cloned()).map(|code| code.code().to_owned()),
        Some("55000".into())
    );
    assert_eq!(left.load(Relaxed), 999);
    left.store(1, Relaxed);
    timeout(Duration::from_secs(5), leases.lead(&name)).await??.release().await; // which asks again
    assert_eq!(left.load(Relaxed), 0);
    leases.close().await;

    // Nor for a server that is silent: it ends with the trust.
    let (link, left) = harming(&dsn, "eskit_lease.", 0, Harm::Hold).await?;
    let leases = open(&link).await?;
    left.store(1_000, Relaxed);
    let silent = timeout(Duration::from_secs(10), leases.try_lead(&name)).await?;
    assert!(matches!(silent, Ok(None)));
    leases.close().await;
    Ok(())
}

/// As of a standby that is about to be the primary.
#[tokio::test]
async fn a_server_that_is_read_only_for_a_while_ends_no_verb() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let db = client(&dsn).await?;
    let (role, own) = consumer(&db, &dsn, "readonly").await?;
    let (leases, name) = (open(&own).await?, name("readonly"));
    db.batch_execute(&format!("ALTER ROLE {role} SET default_transaction_read_only = on")).await?;
    let writes = async {
        let cut = "SELECT count(pg_terminate_backend(pid)) = 1 FROM pg_stat_activity
                   WHERE usename = $1 AND state = 'idle' AND query LIKE '%lease_acquire(%'";
        until(
            &db,
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND query LIKE '%lease_acquire(%')",
            &role,
        )
        .await?;
        db.batch_execute(&format!("ALTER ROLE {role} RESET default_transaction_read_only")).await?;
        until(&db, cut, &role).await
    };
    let (lead, written) = tokio::join!(timeout(Duration::from_secs(10), leases.lead(&name)), writes);
    written?;
    lead??.release().await;
    leases.close().await;
    db.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
    Ok(())
}

/// An error that cannot be told.
#[derive(Debug)]
struct Untellable;

impl std::fmt::Display for Untellable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        unreachable!("a panic of the test")
    }
}

impl std::error::Error for Untellable {}

#[tokio::test]
async fn an_error_that_panics_when_it_is_told_fails_its_item() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (leases, queue, db) = (open(&dsn).await?, name("untellable"), client(&dsn).await?);
    db.execute("SELECT eskit_lease.queue_create($1, 1)", &[&queue]).await?;
    db.execute("SELECT eskit_lease.item_add($1, '1') FROM generate_series(1, 2)", &[&queue]).await?;
    let working = leases.work(&queue, 1, |_| async { Err(Untellable.into()) });
    let dead = "SELECT count(*) = 2 FROM eskit_lease.dead_items WHERE queue = $1";
    until(&db, dead, &queue).await?;
    working.stop().await?;
    assert!(leases.once(&queue, async |_| Err::<&str, _>(Untellable.into())).await.is_err());
    assert!(leases.once(&queue, async |_| Ok("null")).await?.first);
    leases.close().await;
    db.execute("SELECT eskit_lease.queue_drop($1, items => true)", &[&queue]).await?;
    Ok(())
}

/// The future of each verb is dropped at any time, and its keeper is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_by_a_future_that_is_dropped_at_any_time() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (name, db) = (name("any-time"), client(&dsn).await?);
    let group = format!("{name}-group");
    db.execute("SELECT eskit_lease.group_create($1, 2)", &[&group]).await?;
    let own = format!("{dsn}{}application_name={name}", if dsn.contains('?') { '&' } else { '?' });
    let leases = Leases::builder(&own).ttl(Duration::from_secs(60)).open().await?;
    for step in 0..60 {
        let limit = Duration::from_micros(150 * step);
        if let Ok(lead) = timeout(limit, leases.lead(&name)).await {
            lead?.release().await
        }
        if let Ok(Ok(Some(lead))) = timeout(limit, leases.try_lead(&name)).await {
            drop(lead)
        }
        let key = format!("{name}-{step}");
        let _ = timeout(
            limit,
            leases.once(&key, async |_| {
                sleep(Duration::from_millis(1)).await;
                Ok("1")
            }),
        )
        .await;
        let _ = timeout(limit, leases.join(&group, |_| async { Ok(()) })).await;
    }
    timeout(Duration::from_secs(5), leases.lead(&name)).await??.release().await;
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.leases WHERE resource = $1 AND state = 'held'", &name).await?;
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.waiters WHERE resource = $1", &name).await?;
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.group_members WHERE group_name = $1", &group).await?;
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.executions WHERE key LIKE $1 || '%' AND state = 'running'", &name)
        .await?;
    leases.close().await;
    until(&db, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = $1", &name).await?;
    db.execute("SELECT eskit_lease.group_drop($1)", &[&group]).await?;
    Ok(())
}

/// Nothing was claimed, so the session is not closed.
#[tokio::test]
async fn a_claim_without_a_connection_costs_no_session() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (queue, db) = (name("unconnected"), client(&dsn).await?);
    let (role, own) = consumer(&db, &dsn, "unconnected").await?;
    db.execute("SELECT eskit_lease.queue_create($1)", &[&queue]).await?;
    db.execute("SELECT eskit_lease.item_add($1, '1')", &[&queue]).await?;
    let (link, left) = harming(&own, "client_encoding", 0, Harm::Lose).await?;
    let leases = Leases::builder(&link).ttl(Duration::from_secs(60)).open().await?;
    let session = leases.session();
    left.store(2, Relaxed);
    let app = own.clone();
    let working = leases.work(&queue, 1, move |item| {
        let app = app.clone();
        async move { Ok(item.transaction(&mut client(&app).await?, async |_| Ok(())).await?) }
    });
    until(&db, "SELECT count(*) = 0 FROM eskit_lease.items WHERE queue = $1", &queue).await?;
    assert_eq!((left.load(Relaxed), leases.session()), (0, session));
    working.stop().await?;
    leases.close().await;
    db.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
    db.execute("SELECT eskit_lease.queue_drop($1, items => true)", &[&queue]).await?;
    Ok(())
}

/// As with a token that has expired.
#[tokio::test]
async fn a_lead_waits_for_a_connection_that_is_refused() -> Done {
    let Some(dsn) = dsn() else { return Ok(()) };
    let (lead, db) = (name("forbidden"), client(&dsn).await?);
    let (role, own) = consumer(&db, &dsn, "forbidden").await?;
    let leases = Leases::builder(&own).ttl(Duration::from_secs(60)).open().await?;
    db.batch_execute(&format!("ALTER ROLE {role} NOLOGIN")).await?;
    let (lead, allowed) = tokio::join!(timeout(Duration::from_secs(10), leases.lead(&lead)), async {
        sleep(Duration::from_millis(500)).await;
        db.batch_execute(&format!("ALTER ROLE {role} LOGIN")).await
    });
    allowed?;
    lead??.release().await;
    leases.close().await;
    db.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
    Ok(())
}
