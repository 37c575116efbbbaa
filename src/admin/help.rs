//! `help()`: the reference as text for a terminal. Its text about a function, a view or a column is the COMMENT in the
//! catalog; its text about a setting is the setting's description. So this file repeats none of these texts, and an
//! answer is about the objects that this database has.
//!
//! Only the topics are listed here: which functions and views belong together, as on the pages of docs/reference.

use crate::base::error::{Error, Result};
use crate::base::{limits, nearest};
use crate::call::text_arg;
use crate::pg::catalog;
use crate::pg::spi::{Db, Row, Statement};
use crate::pg::text::Text;
use pgrx::prelude::*;
use std::fmt::Write;

static FUNCTIONS: Statement = Statement::reads(include_str!("../../sql/query/help/functions.sql"), &[]);
static COLUMNS: Statement = Statement::reads(include_str!("../../sql/query/help/columns.sql"), &[]);
static SETTINGS: Statement = Statement::reads(include_str!("../../sql/query/help/settings.sql"), &[]);

struct Topic {
    name: &'static str,
    title: &'static str,
    /// Names of functions, or what their names begin with, up to an underscore.
    functions: &'static [&'static str],
    views: &'static [&'static str],
}

const fn topic(
    name: &'static str,
    title: &'static str,
    functions: &'static [&'static str],
    views: &'static [&'static str],
) -> Topic {
    Topic { name, title, functions, views }
}

const VIEWS: &str = "views";
const SETTINGS_TOPIC: &str = "settings";

const TOPICS: [Topic; 12] = [
    topic("sessions", "Sessions", &["session", "notify_me"], &["sessions"]),
    topic(
        "leases",
        "Leases, fences and semaphores",
        &["lease", "lock", "fence", "semaphore"],
        &["leases", "waiters", "refusals", "semaphores", "blockers", "declared_names", "history", "flapping", "top"],
    ),
    topic(
        "groups",
        "Groups and cursors",
        &["group", "cursor"],
        &["groups", "group_members", "group_partitions", "group_lag"],
    ),
    topic("items", "Work items", &["queue", "item"], &["queues", "items", "dead_items"]),
    topic("executions", "Run-once keys", &["execution"], &["executions"]),
    topic("positions", "Reading an outbox without gaps", &["position"], &["position_blockers"]),
    topic("bridges", "Bridges", &["bridge"], &["bridges"]),
    topic("fenced_tables", "Fenced tables", &["table"], &["fenced_tables"]),
    topic("keys", "Keys", &["group_lock_key", "advisory", "partition"], &[]),
    topic("privileges", "Privileges and administration", &["grant", "stats", "require_fence", "help"], &[]),
    topic(VIEWS, "Views", &[], &[]),
    topic(SETTINGS_TOPIC, "Settings", &[], &[]),
];

impl Topic {
    /// Returns whether a function belongs to this topic. A topic that lists the whole name of the function comes before
    /// one that lists its first word.
    fn has(&self, function: &Function) -> bool {
        let by = |words: &[&str]| words.contains(&function.name.as_str());
        let family = function.name.split('_').next().unwrap_or_default();
        let elsewhere = TOPICS.iter().any(|topic| by(topic.functions));
        let is_former = function.about.starts_with("Deprecated");
        by(self.functions) || !elsewhere && !is_former && self.functions.contains(&family)
    }
}

struct Function {
    name: String,
    takes: String,
    gives: String,
    about: String,
}

struct Column {
    name: String,
    is_a: String,
    about: String,
}

struct View {
    name: String,
    about: String,
    columns: Vec<Column>,
}

struct Setting {
    /// Without the name of the extension.
    name: String,
    default: String,
    range: Option<(String, String)>,
    unit: String,
    context: String,
    about: String,
    reason: String,
}

/// The functions, views and settings that `help()` knows.
struct Book {
    functions: Vec<Function>,
    views: Vec<View>,
    settings: Vec<Setting>,
}

impl Book {
    fn read() -> Book {
        let db = Db::open(catalog::home());
        let function =
            |row: Row| Function { name: row.text(1), takes: row.text(2), gives: row.text(3), about: row.text(4) };
        let column = |row: Row| {
            let column = Column { name: row.text(3), is_a: row.text(4), about: row.text(5) };
            View { name: row.text(1), about: row.text(2), columns: vec![column] }
        };
        let setting = |row: Row| {
            let text = |column| row.get::<Text>(column).map(|text| text.0);
            Setting {
                name: row.text(1).replacen("eskit_lease.", "", 1),
                default: row.text(2),
                unit: text(3).unwrap_or_default(),
                range: text(4).zip(text(5)),
                context: row.text(6),
                about: row.text(7),
                reason: text(8).unwrap_or_default(),
            }
        };
        let mut views: Vec<View> = Vec::new();
        for mut view in db.run(&COLUMNS, vec![], column) {
            match views.last_mut() {
                Some(last) if last.name == view.name => last.columns.append(&mut view.columns),
                _ => views.push(view),
            }
        }
        let (functions, settings) = (db.run(&FUNCTIONS, vec![], function), db.run(&SETTINGS, vec![], setting));
        Book { functions, views, settings }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let functions = self.functions.iter().map(|function| function.name.as_str());
        let others = self.views.iter().map(|view| &view.name).chain(self.settings.iter().map(|setting| &setting.name));
        TOPICS.iter().map(|topic| topic.name).chain(functions).chain(others.map(String::as_str))
    }

    /// Returns the pages of a name: a topic and a view may share it.
    fn pages(&self, name: &str) -> Vec<String> {
        let topics = TOPICS.iter().filter(|topic| topic.name == name).map(|topic| self.of_topic(topic));
        let functions = self.functions.iter().filter(|function| function.name == name).map(of_function);
        let views = self.views.iter().filter(|view| view.name == name).map(of_view);
        let settings = self.settings.iter().filter(|setting| setting.name == name).map(of_setting);
        topics.chain(functions).chain(views).chain(settings).collect()
    }

    fn contents(&self) -> String {
        let mut page = String::from("Topics of eskit_lease:\n\n");
        for topic in &TOPICS {
            let _ = writeln!(page, "    {:<15}{}", topic.name, topic.title);
        }
        page.push('\n');
        let how = "help('leases') lists what belongs to a topic; help('lease_acquire') describes a function, and so \
                   each view and setting.";
        wrap(&mut page, how, 0, 0);
        page
    }

    fn of_topic(&self, topic: &Topic) -> String {
        let mut page = topic.title.to_owned();
        let mut entry = |name: &str, about: &str| {
            page += "\n\n";
            wrap(&mut page, name, 4, 8);
            page.push('\n');
            wrap(&mut page, about, 8, 8);
        };
        for function in self.functions.iter().filter(|function| topic.has(function)) {
            entry(&format!("{}({})", function.name, function.takes), first_sentence(&function.about));
        }
        let has_view = |view: &&View| topic.name == VIEWS || topic.views.contains(&view.name.as_str());
        for view in self.views.iter().filter(has_view) {
            entry(&format!("view {}", view.name), first_sentence(&view.about));
        }
        for setting in self.settings.iter().filter(|_| topic.name == SETTINGS_TOPIC) {
            entry(&format!("eskit_lease.{}", setting.name), &setting.about);
        }
        page
    }
}

fn of_function(function: &Function) -> String {
    let mut page = String::new();
    wrap(&mut page, &format!("eskit_lease.{}({})", function.name, function.takes), 0, 4);
    page.push('\n');
    let gives = if function.gives == "void" { "nothing" } else { &function.gives };
    wrap(&mut page, &format!("returns {gives}"), 4, 8);
    // Reasons and errors begin lines of their own, because readers look for them.
    for paragraph in function.about.replace(". Reasons: ", ".\nReasons: ").replace(". Raises ", ".\nRaises ").lines() {
        page += "\n\n";
        wrap(&mut page, paragraph, 0, 0);
    }
    page
}

fn of_view(view: &View) -> String {
    let mut page = format!("view eskit_lease.{}\n\n", view.name);
    wrap(&mut page, &view.about, 0, 0);
    page.push('\n');
    for Column { name, is_a, about } in &view.columns {
        let _ = write!(page, "\n    {name} {is_a}\n");
        wrap(&mut page, about, 8, 8);
    }
    page
}

fn of_setting(setting: &Setting) -> String {
    let with_unit = |value: &str| format!("{value} {}", setting.unit).trim_end().to_owned();
    let mut page = format!("setting eskit_lease.{}\n    default {}", setting.name, with_unit(&setting.default));
    if let Some((least, most)) = &setting.range {
        let _ = write!(page, ", from {least} to {}", with_unit(most));
    }
    page += match setting.context.as_str() {
        "postmaster" => "; changes at a restart",
        "sighup" => "; changes at a reload",
        "superuser" => "; superusers change it at any time",
        _ => "; changes at any time",
    };
    for paragraph in [&setting.about, &setting.reason] {
        page += "\n\n";
        wrap(&mut page, paragraph, 0, 0);
    }
    page
}

fn first_sentence(text: &str) -> &str {
    text.find(". ").map_or(text, |end| &text[..=end])
}

/// Appends a text, broken at blanks. `first` and `rest`: how many blanks its lines begin with.
fn wrap(page: &mut String, text: &str, first: usize, rest: usize) {
    page.extend(std::iter::repeat_n(' ', first));
    let (mut at, mut is_begun) = (first, false);
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if is_begun && at + 1 + width > limits::HELP_COLUMNS {
            page.push('\n');
            page.extend(std::iter::repeat_n(' ', rest));
            at = rest;
        } else if is_begun {
            page.push(' ');
            at += 1;
        }
        page.push_str(word);
        at += width;
        is_begun = true;
    }
}

/// Returns the name that a reader may have meant: the shortest that contains the word, or else the one with the fewest
/// other letters, if they are at most half of the word's.
fn nearest_of<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<&str> = names.collect();
    let containing = names.iter().filter(|name| word.len() > 2 && name.contains(word)).min_by_key(|name| name.len());
    let near = |name: &&&str| nearest::distance(word, name, word.chars().count() / 2);
    let others = || names.iter().filter(|name| near(name).is_some()).min_by_key(near);
    containing.or_else(others).copied()
}

#[pg_extern(schema = "eskit_lease", stable)]
fn help(topic: default!(Option<Text>, "NULL")) -> Result<Text> {
    let Some(topic) = topic else { return Ok(Text(Book::read().contents())) };
    let asked = text_arg("topic", Some(topic))?;
    let book = Book::read();
    // The name may be given as in a call, or with the schema, as other pages write it.
    let lower = asked.to_lowercase();
    let name = lower.split('(').next().unwrap_or_default().trim();
    let name = name.strip_prefix("eskit_lease.").unwrap_or(name);
    let pages = book.pages(name);
    if pages.is_empty() {
        let nearest = nearest_of(name, book.names()).map(str::to_owned);
        return Err(Error::NoTopic { topic: asked, nearest }.into());
    }
    Ok(Text(pages.join("\n\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_blanks() {
        let mut page = String::from("> ");
        wrap(&mut page, &"word ".repeat(30), 4, 8);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with(">     word word") && lines[1].starts_with("        word"));
        assert!(lines.iter().all(|line| line.trim_start_matches("> ").chars().count() <= limits::HELP_COLUMNS));
        assert_eq!(page.matches("word").count(), 30);
        let (mut long, wide) = (String::new(), "x".repeat(2 * limits::HELP_COLUMNS));
        wrap(&mut long, &format!("a {wide} b"), 0, 2);
        assert_eq!(long, format!("a\n  {wide}\n  b"));
    }

    #[test]
    fn the_nearest_name_has_the_fewest_other_letters() {
        let names = || ["leases", "lease_acquire", "lease_acquire_many", "session_heartbeat"].into_iter();
        assert_eq!(nearest_of("lease_aquire", names()), Some("lease_acquire"));
        assert_eq!(nearest_of("lease", names()), Some("leases"));
        assert_eq!(nearest_of("heartbeat", names()), Some("session_heartbeat"));
        assert_eq!(nearest_of("zookeeper", names()), None);
        assert_eq!(nearest_of("", names()), None);
    }

    #[test]
    fn a_sentence_ends_before_the_next() {
        assert_eq!(first_sentence("Asks for 0.5 s. Never waits."), "Asks for 0.5 s.");
        assert_eq!(first_sentence("One alone."), "One alone.");
    }
}
