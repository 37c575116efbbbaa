//! Connections by a connection string, or else by the environment variables of libpq.

use crate::error::Error;
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
    let (dsn, mode, roots) = without_tls(dsn);
    let mut config: Config = dsn.parse()?;
    fill_in(&mut config)?;
    match mode.or_else(|| env::var("PGSSLMODE").ok()).as_deref() {
        None | Some("disable" | "allow" | "prefer") => Ok(by_config(config, NoTls)),
        Some("require" | "verify-ca" | "verify-full") => {
            config.ssl_mode(SslMode::Require);
            secure(config, roots.or_else(|| env::var("PGSSLROOTCERT").ok()))
        }
        Some(_) => Err(Error::Misuse("sslmode is disable, allow, prefer, require, verify-ca or verify-full")),
    }
}

/// Takes `sslmode` and `sslrootcert` out of a connection string: the driver knows neither their values nor files.
fn without_tls(dsn: &str) -> (String, Option<String>, Option<String>) {
    let (mut mode, mut roots) = (None, None);
    let (base, separator, pairs) = match dsn.split_once('?') {
        Some((base, pairs)) if dsn.starts_with("postgres") => (format!("{base}?"), '&', pairs),
        _ => (String::new(), ' ', dsn),
    };
    let rest = pairs.split(separator).filter(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "sslmode" => mode = Some(value.trim_matches('\'').to_owned()),
            "sslrootcert" => roots = Some(value.trim_matches('\'').to_owned()),
            _ => return true,
        }
        false
    });
    let rest = rest.collect::<Vec<_>>().join(&separator.to_string());
    (format!("{base}{rest}"), mode, roots)
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
fn secure(config: Config, roots: Option<String>) -> Result<Connect, Error> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut store = rustls::RootCertStore::empty();
    match roots.as_deref() {
        None | Some("system") => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(file) => {
            for certificate in CertificateDer::pem_file_iter(file).map_err(other)? {
                store.add(certificate.map_err(other)?).map_err(other)?;
            }
        }
    }
    let provider = rustls::crypto::ring::default_provider();
    let versions = rustls::ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions();
    let tls = versions.map_err(other)?.with_root_certificates(store).with_no_client_auth();
    Ok(by_config(config, tokio_postgres_rustls::MakeRustlsConnect::new(tls)))
}

#[cfg(not(feature = "rustls"))]
fn secure(_: Config, _: Option<String>) -> Result<Connect, Error> {
    Err(Error::Misuse("TLS by a connection string needs the feature rustls"))
}

#[cfg(feature = "rustls")]
fn other(error: impl Into<crate::error::BoxError>) -> Error {
    Error::Other(error.into())
}
