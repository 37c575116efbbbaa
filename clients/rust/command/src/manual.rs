//! The manual page: one for the command and all of its parts.

use crate::options::{ABOUT_RUN, Options, PRIVILEGES};
use clap::CommandFactory;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};
use std::io::{Result, Write};

const DESCRIPTION: &str = "Gives leases of the PostgreSQL extension eskit_lease to programs in any language. Of all \
processes with one name, on however many machines, one leads; or each owns some partitions of a group; or one runs a \
program for a key.";
const EXAMPLES: [(&str, &str); 5] = [
    ("One process at a time; others wait:", "eskit-lease run --lead sub:orders -- ./projector"),
    ("One for each partition that this process owns:", "eskit-lease run --group orders -- ./consumer"),
    ("Once, wherever it is called:", "eskit-lease run --once invoice:42 -- ./invoice"),
    ("Who holds what, for a program:", "eskit-lease status --json"),
    ("Each change of one lease:", "eskit-lease watch sub:orders"),
];
const SEE_ALSO: &str = "psql(1), flock(1), crontab(5), systemd.service(5), /usr/share/doc/eskit-lease/README.md";

pub fn write(out: &mut dyn Write) -> Result<()> {
    let command = Options::command().after_help("");
    let parts = || command.get_subcommands().filter(|part| !part.is_hide_set());
    let man = Man::new(command.clone());
    man.render_title(out)?;
    man.render_name_section(out)?;
    section(out, "Synopsis", |page| {
        for part in parts() {
            let arguments = if part.get_name() == "run" { "[options] -- program ..." } else { "[options] [name ...]" };
            page.text([bold(format!("eskit-lease {} ", part.get_name())), roman(arguments)]).control("br", []);
        }
    })?;
    section(out, "Description", |page| {
        page.text([roman(DESCRIPTION)]).control("PP", []).text([roman(PRIVILEGES)]);
    })?;
    man.render_options_section(out)?;
    for part in parts() {
        section(out, part.get_name(), |page| {
            page.text([roman(format!("{}.", part.get_about().cloned().unwrap_or_default()))]);
        })?;
        let mut options = Vec::new();
        Man::new(part.clone()).render_options_section(&mut options)?;
        write!(out, "{}", String::from_utf8_lossy(&options).replacen(".SH OPTIONS", ".PP", 1))?; // of this section
    }
    for (title, text) in ABOUT_RUN {
        section(out, title, |page| {
            page.control("nf", []).text([roman(text)]).control("fi", []); // its columns stay
        })?;
    }
    section(out, "Examples", |page| {
        for (what, call) in EXAMPLES {
            page.control("PP", []).text([roman(what)]).control("PP", []);
            page.control("RS", ["4"]).text([bold(call)]).control("RE", []);
        }
    })?;
    section(out, "See also", |page| {
        page.text([roman(SEE_ALSO)]);
    })
}

fn section(out: &mut dyn Write, title: &str, fill: impl FnOnce(&mut Roff)) -> Result<()> {
    let mut page = Roff::default();
    page.control("SH", [title.to_uppercase().as_str()]);
    fill(&mut page);
    page.to_writer(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_the_sections_that_readers_look_for() -> std::io::Result<()> {
        let mut page = Vec::new();
        super::write(&mut page)?;
        let page = String::from_utf8_lossy(&page);
        for section in ["NAME", "SYNOPSIS", "OPTIONS", "RUN", "SIGNALS", "\"EXIT STATUS\"", "EXAMPLES", "\"SEE ALSO\""]
        {
            assert_eq!(page.matches(&format!("\n.SH {section}\n")).count(), 1, "{section}: {page}");
        }
        Ok(())
    }
}
