//! The heartbeats of a client, on a connection of their own.

use super::worker::Beating;
use crate::caller::{Caller, Connection};
use crate::history::{Call, Verb};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tokio_postgres::Config;

/// Heartbeats the present session without end, at intervals of a third of the TTL.
pub(super) async fn beat(caller: Arc<Caller>, config: Config, beating: Beating) {
    let mut connection: Option<Connection> = None;
    loop {
        let session = beating.lock().ok().and_then(|beating| beating.clone());
        sleep(Duration::from_millis(session.as_ref().map_or(50, |session| session.ttl_ms / 3))).await;
        if connection.as_ref().is_none_or(|connection| connection.client.is_closed()) {
            connection = Connection::open(&config).await.ok();
        }
        if let (Some(session), Some(connection)) = (session, &connection) {
            // The worker finds out about the session by its own calls.
            drop(
                caller
                    .call(
                        &connection.client,
                        Call { verb: Verb::Heartbeat, session: Some(session.id), ..Call::default() },
                    )
                    .await,
            );
        }
    }
}
