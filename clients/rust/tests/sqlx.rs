//! The fence in transactions of sqlx, against the server of DATABASE_URL; without one, nothing is tested.
#![cfg(feature = "sqlx")]

use eskit_lease::{BoxError, Error, Leases, sqlx as fenced};
use sqlx::{Connection, Executor, PgConnection};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

type Done = Result<(), BoxError>;

fn name(of: &str) -> String {
    format!("rust-sqlx-{of}-{}", std::process::id())
}

async fn count(db: &mut PgConnection) -> Result<i64, BoxError> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(db).await?)
}

#[tokio::test]
async fn a_transaction_is_fenced_and_tells_how_it_ended() -> Done {
    let Ok(dsn) = std::env::var("DATABASE_URL") else { return Ok(()) };
    let (mut db, mut other) = (PgConnection::connect(&dsn).await?, PgConnection::connect(&dsn).await?);
    let leases = Leases::builder(&dsn).ttl(Duration::from_secs(3)).open().await?;
    let lead = leases.lead(&name("lead")).await?;
    db.execute("CREATE TEMP TABLE effects (id int PRIMARY KEY)").await?;

    let mut tx = db.begin().await?;
    fenced::guard(&lead, &mut tx).await?;
    tx.execute("INSERT INTO effects VALUES (1)").await?;
    fenced::end(&lead, tx).await?;
    assert_eq!(count(&mut db).await?, 1);

    // An error that the work has caught is no silent rollback, nor the end of the scope.
    let mut tx = db.begin().await?;
    fenced::guard(&lead, &mut tx).await?;
    assert!(tx.execute("INSERT INTO effects VALUES (1)").await.is_err());
    let caught = fenced::end(&lead, tx).await;
    assert!(matches!(&caught, Err(Error::Other(error)) if error.to_string().contains("aborted")), "{caught:?}");
    assert!(lead.is_trusted());

    // A connection that breaks before COMMIT is answered leaves its end unknown, and ends the scope.
    let mut broken = PgConnection::connect(&dsn).await?;
    let mut tx = broken.begin().await?;
    fenced::guard(&lead, &mut tx).await?;
    tx.execute("CREATE TEMP TABLE deferred (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)").await?;
    tx.execute(
        "CREATE FUNCTION pg_temp.die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER die AFTER INSERT ON deferred INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION pg_temp.die(); INSERT INTO deferred VALUES (1)",
    )
    .await?;
    let unsure = fenced::end(&lead, tx).await;
    assert!(matches!(&unsure, Err(Error::Unsure(cause)) if cause.fence == Some(lead.fence())), "{unsure:?}");
    assert!(!lead.is_trusted());
    let fence = lead.fence();
    lead.release().await;

    // A fence that was taken away is refused, and the scope ends.
    let lead = leases.lead(&name("lead")).await?;
    assert!(lead.fence() > fence);
    let take = "SELECT eskit_lease.lease_force_release($1, $2, 'a test')";
    sqlx::query(take).bind(lead.name()).bind(lead.fence()).execute(&mut other).await?;
    let mut tx = db.begin().await?;
    let refused = fenced::guard(&lead, &mut tx).await;
    assert!(matches!(&refused, Err(Error::Refused(_) | Error::Lost(_))), "{refused:?}");
    timeout(Duration::from_secs(5), lead.cancelled()).await?;
    assert!(matches!(fenced::end(&lead, tx).await, Err(Error::Lost(_))));
    lead.release().await;
    leases.close().await;
    Ok(())
}

#[tokio::test]
async fn an_item_is_finished() -> Done {
    let Ok(dsn) = std::env::var("DATABASE_URL") else { return Ok(()) };
    let (queue, mut db) = (name("queue"), PgConnection::connect(&dsn).await?);
    sqlx::query("SELECT eskit_lease.queue_create($1)").bind(&queue).execute(&mut db).await?;
    sqlx::query("SELECT eskit_lease.item_add($1, '{}')").bind(&queue).execute(&mut db).await?;
    let leases = Leases::builder(&dsn).open().await?;
    let (tell, mut told) = mpsc::channel(1);
    let worker = leases.work(&queue, 1, move |item| {
        let (dsn, tell) = (dsn.clone(), tell.clone());
        async move {
            fenced::finish(&item, PgConnection::connect(&dsn).await?.begin().await?).await?;
            Ok(tell.send(()).await?)
        }
    });
    assert_eq!(timeout(Duration::from_secs(10), told.recv()).await?, Some(()));
    worker.stop().await?;
    leases.close().await;
    let left = "SELECT count(*) FROM eskit_lease.items WHERE queue = $1";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).bind(&queue).fetch_one(&mut db).await?, 0);
    sqlx::query("SELECT eskit_lease.queue_drop($1)").bind(&queue).execute(&mut db).await?;
    Ok(())
}

#[tokio::test]
async fn a_partition_moves_its_cursor() -> Done {
    let Ok(dsn) = std::env::var("DATABASE_URL") else { return Ok(()) };
    let (group, mut db) = (name("group"), PgConnection::connect(&dsn).await?);
    sqlx::query("SELECT eskit_lease.group_create($1, 1)").bind(&group).execute(&mut db).await?;
    let leases = Leases::builder(&dsn).open().await?;
    let (tell, mut told) = mpsc::channel(1);
    let member = leases.join(&group, move |partition| {
        let (dsn, tell) = (dsn.clone(), tell.clone());
        async move {
            let mut db = PgConnection::connect(&dsn).await?;
            let mut tx = db.begin().await?;
            let position = fenced::position(&partition, &mut tx).await?;
            let moved = fenced::commit(&partition, &mut tx, position + 7, position).await?;
            fenced::end(&partition, tx).await?;
            let mut tx = db.begin().await?;
            let again = fenced::commit(&partition, &mut tx, position + 7, position).await?;
            let now = fenced::position(&partition, &mut tx).await?;
            tell.send((moved, again, now - position)).await?;
            partition.cancelled().await;
            Ok(())
        }
    });
    assert_eq!(timeout(Duration::from_secs(10), told.recv()).await?, Some((true, false, 7)));
    member.stop().await?;
    leases.close().await;
    sqlx::query("SELECT eskit_lease.group_drop($1)").bind(&group).execute(&mut db).await?;
    Ok(())
}
