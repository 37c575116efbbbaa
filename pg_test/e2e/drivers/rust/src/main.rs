//! Calls the functions of eskit_lease that pg_test/e2e/test_drivers.py sends, with tokio-postgres, as docs/drivers.md
//! says. That test describes the lines. Arguments: the URL of the database; `native` or `text`.

use std::io::{Write, stdin, stdout};

use chrono::{DateTime, Utc};
use serde_json::Value;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Passed = Box<dyn ToSql + Sync + Send>;

/// Returns the placeholder of an argument. Types that the driver does not know are passed as text.
fn mark(native: bool, number: usize, kind: &str) -> String {
    match kind {
        "interval" | "regclass" | "regrole" => format!("${number}::text::{kind}"),
        _ if native => format!("${number}"),
        _ => format!("${number}::text::{kind}"),
    }
}

fn elements<T>(value: &str, of: impl Fn(&str) -> Result<T, Failure>) -> Result<Vec<Option<T>>, Failure> {
    value.split('|').map(|element| (element != "\\N").then(|| of(element)).transpose()).collect()
}

/// Returns the argument as the type that the driver expects, even for NULL.
fn passed(native: bool, kind: &str, value: &str) -> Result<Passed, Failure> {
    let given = (value != "\\N").then_some(value);
    Ok(match kind {
        _ if !native && kind.ends_with("[]") => Box::new(given.map(literal)),
        _ if !native => Box::new(given.map(str::to_owned)),
        "integer" => Box::new(given.map(str::parse::<i32>).transpose()?),
        "bigint" => Box::new(given.map(str::parse::<i64>).transpose()?),
        "boolean" => Box::new(given.map(|value| value == "true")),
        "uuid" => Box::new(given.map(Uuid::parse_str).transpose()?),
        "timestamp with time zone" => Box::new(given.map(str::parse::<DateTime<Utc>>).transpose()?),
        "jsonb" => Box::new(given.map(serde_json::from_str::<Value>).transpose()?),
        "text[]" => Box::new(given.map(|value| elements(value, |element| Ok(element.to_owned()))).transpose()?),
        "integer[]" => Box::new(given.map(|value| elements(value, |element| Ok(element.parse::<i32>()?))).transpose()?),
        "bigint[]" => Box::new(given.map(|value| elements(value, |element| Ok(element.parse::<i64>()?))).transpose()?),
        "uuid[]" => Box::new(given.map(|value| elements(value, |element| Ok(Uuid::parse_str(element)?))).transpose()?),
        "jsonb[]" => Box::new(
            given.map(|value| elements(value, |element| Ok(serde_json::from_str::<Value>(element)?))).transpose()?,
        ),
        _ => Box::new(given.map(str::to_owned)),
    })
}

fn literal(value: &str) -> String {
    let quoted = value.split('|').map(|element| match element {
        "\\N" => "NULL".to_owned(),
        _ => Value::from(element).to_string(),
    });
    format!("{{{}}}", quoted.collect::<Vec<_>>().join(","))
}

async fn call(db: &Client, native: bool, line: &str) -> Result<String, Failure> {
    let words: Vec<&str> = line.split('\t').collect();
    let (mut marks, mut values) = (Vec::new(), Vec::new());
    for argument in words[1..].chunks_exact(2) {
        marks.push(mark(native, marks.len() + 1, argument[0]));
        values.push(passed(native, argument[0], argument[1])?);
    }
    let (function, marks) = (words[0], marks.join(", "));
    let sql =
        format!("SELECT coalesce(jsonb_agg(x), '[]')::text FROM (SELECT * FROM eskit_lease.{function}({marks})) AS x");
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value.as_ref() as _).collect();
    Ok(db.query_one(&sql, &values).await?.try_get(0)?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, url, style] = &arguments[..] else { return Err("arguments: URL STYLE".into()) };
    let mut config: Config = url.parse()?;
    config.password(std::env::var("PGPASSWORD")?); // this driver does not read the variable
    let (db, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    for line in stdin().lines() {
        let answer = call(&db, style == "native", &line?).await.unwrap_or_else(|error| {
            let told = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::as_db_error);
            told.map_or(format!("!? {error}"), |told| format!("!{} {}", told.code().code(), told.message()))
        });
        writeln!(stdout(), "{answer}")?;
    }
    Ok(())
}
