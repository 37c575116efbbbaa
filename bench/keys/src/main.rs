//! Counts collisions of the folds of keys.
//!
//! * `keys count NAMES` prints the collisions over so many distinct names: a line for each family of names, and one for
//!   all.
//! * `keys names NAMES FAMILY` prints the names of one family, a line each, for COPY.
//!
//! The folds are the extension's own sources. A name that occurred twice would count as a collision of both folds.

#[path = "../../../src/keys/fold.rs"]
mod fold;
mod names;

use names::FAMILIES;
use std::io::{self, BufWriter, Write};

/// A power of two: then only the last bits of the fold decide, which are its weakest.
const PARTITIONS: usize = 16;
const FOLDS: [fn(&str) -> u64; 2] = [|name| fold::fold_sha256(name).cast_unsigned(), fold::fnv1a];

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", names] => count(number(names)?),
        ["names", names, family] => write_names(number(names)?, number(family)?),
        _ => Err(io::Error::other("keys count NAMES | keys names NAMES FAMILY")),
    }
}

fn number(text: &str) -> io::Result<usize> {
    text.parse().map_err(io::Error::other)
}

/// Calls `act` with each name of a family, which has an equal share of `names`.
fn each(names: usize, family: usize, mut act: impl FnMut(&str) -> io::Result<()>) -> io::Result<()> {
    let share = names / FAMILIES.len() + usize::from(family < names % FAMILIES.len());
    let (_, write) = FAMILIES[family];
    let mut name = String::new();
    for n in 0..share as u64 {
        name.clear();
        write(n, &mut name).map_err(io::Error::other)?;
        act(&name)?;
    }
    Ok(())
}

fn write_names(names: usize, family: usize) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    each(names, family, |name| writeln!(out, "{name}"))?;
    out.flush()
}

fn count(names: usize) -> io::Result<()> {
    let mut keys = [Vec::with_capacity(names), Vec::with_capacity(names)];
    let mut partitions = [0; PARTITIONS];
    for (n, (family, _)) in FAMILIES.iter().enumerate() {
        let (start, mut of_family, mut example) = (keys[0].len(), [0; PARTITIONS], String::new());
        each(names, n, |name| {
            for (keys, fold) in keys.iter_mut().zip(FOLDS) {
                keys.push(fold(name));
            }
            let partition =
                fold::partition_of(name, PARTITIONS as i32).ok_or_else(|| io::Error::other("no partition"))?;
            of_family[partition as usize] += 1;
            name.clone_into(&mut example);
            Ok(())
        })?;
        for (sum, of_family) in partitions.iter_mut().zip(of_family) {
            *sum += of_family;
        }
        show(family, &example, keys.each_mut().map(|keys| &mut keys[start..]), &of_family);
    }
    show("all", "", keys.each_mut().map(|keys| &mut keys[..]), &partitions);
    Ok(())
}

/// Prints the family, its last name, the number of names, the collisions of each fold, and the names in each partition.
fn show(family: &str, example: &str, keys: [&mut [u64]; 2], partitions: &[u64; PARTITIONS]) {
    let names = keys[0].len();
    let [sha256, fnv1a] = keys.map(collisions);
    println!(
        "{family}\t{example}\t{names}\t{sha256}\t{fnv1a}\t{}",
        partitions.map(|count| count.to_string()).join(" ")
    );
}

/// Returns how many keys are equal to an earlier one.
fn collisions(keys: &mut [u64]) -> usize {
    keys.sort_unstable();
    keys.windows(2).filter(|pair| pair[0] == pair[1]).count()
}
