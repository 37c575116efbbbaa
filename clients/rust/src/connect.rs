//! Connections by a connection string, or else by the environment variables of libpq.

use crate::error::{BoxError, Error};
use crate::line::Connect;
use std::{env, time::Duration};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, NoTls, Socket};

/// Makes a connection for your own work, by the same string as [`Leases::builder`](crate::Leases::builder), and drives
/// it in the background.
pub async fn connect(dsn: &str) -> Result<Client, Error> {
    let (client, driver) = by_dsn(dsn)?(Duration::ZERO).await?;
    tokio::spawn(driver);
    Ok(client)
}

/// Returns what connects by a string, of which the environment fills in what is missing. `sslmode` is `require` or
/// `verify-full` for TLS, both with a verified certificate, by the file `sslrootcert` or else the system's roots.
pub(crate) fn by_dsn(dsn: &str) -> Result<Connect, Error> {
    let mut dsn = dsn.to_owned();
    let mode = take(&mut dsn, "sslmode").or_else(|| env::var("PGSSLMODE").ok());
    let roots = take(&mut dsn, "sslrootcert").or_else(|| env::var("PGSSLROOTCERT").ok());
    let mut config: Config = dsn.parse()?;
    fill_in(&mut config)?;
    match mode.as_deref() {
        None | Some("disable" | "allow" | "prefer") => Ok(by_config(config, NoTls)),
        Some("require" | "verify-ca" | "verify-full") => Ok(secure(config.ssl_mode(SslMode::Require).clone(), roots)?),
        Some(_) => Err(Error::Misuse("sslmode is disable, allow, prefer, require, verify-ca or verify-full")),
    }
}

/// Takes a parameter out of a connection string: the driver knows neither all values of `sslmode` nor files.
fn take(dsn: &mut String, name: &str) -> Option<String> {
    let is_first = |at: &usize| *at == 0 || dsn[..*at].ends_with(['?', '&', ' ']);
    let start = dsn.match_indices(&format!("{name}=")).map(|(at, _)| at).find(is_first)?;
    let end = dsn[start..].find(['&', ' ']).map_or(dsn.len(), |length| start + length + 1);
    let pair = dsn.drain(start..end).collect::<String>();
    Some(pair[name.len() + 1..].trim_end_matches(['&', ' ']).trim_matches('\'').to_owned())
}

fn fill_in(config: &mut Config) -> Result<(), Error> {
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        config.host(env::var("PGHOST").unwrap_or_else(|_| "localhost".into()));
    }
    if let (true, Ok(port)) = (config.get_ports().is_empty(), env::var("PGPORT")) {
        config.port(port.parse().map_err(|_| Error::Misuse("PGPORT is no port"))?);
    }
    if let (None, Ok(user)) = (config.get_user(), env::var("PGUSER")) {
        config.user(user);
    }
    if let (None, Ok(password)) = (config.get_password(), env::var("PGPASSWORD")) {
        config.password(password);
    }
    if let (None, Ok(dbname)) = (config.get_dbname(), env::var("PGDATABASE")) {
        config.dbname(dbname);
    }
    Ok(())
}

fn by_config<T>(config: Config, tls: T) -> Connect
where
    T: MakeTlsConnect<Socket, Stream: Send + 'static, TlsConnect: Send> + Clone + Send + Sync + 'static,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    Box::new(move |limit| {
        let (mut config, tls) = (config.clone(), tls.clone());
        if !limit.is_zero() && config.get_tcp_user_timeout().is_none() {
            // Else the kernel would go on sending a call that was given up, and it could arrive when nothing wants it.
            config.tcp_user_timeout(limit);
        }
        Box::pin(async move {
            let (client, driver) = config.connect(tls).await?;
            Ok((client, Box::pin(async { drop(driver.await) }) as _))
        })
    })
}

#[cfg(feature = "rustls")]
fn secure(config: Config, roots: Option<String>) -> Result<Connect, BoxError> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut store = rustls::RootCertStore::empty();
    match roots.as_deref() {
        None | Some("system") => _ = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        Some(file) => {
            for certificate in CertificateDer::pem_file_iter(file)? {
                store.add(certificate?)?;
            }
        }
    }
    let provider = rustls::crypto::ring::default_provider();
    let versions = rustls::ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions();
    let tls = versions?.with_root_certificates(store).with_no_client_auth();
    Ok(by_config(config, tokio_postgres_rustls::MakeRustlsConnect::new(tls)))
}

#[cfg(not(feature = "rustls"))]
fn secure(_: Config, _: Option<String>) -> Result<Connect, BoxError> {
    Err(Error::Misuse("TLS by a connection string needs the feature rustls").into())
}
