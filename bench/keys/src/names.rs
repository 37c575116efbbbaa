//! Names as people give them to streams, projections, jobs and locks. All names of a family differ. The functions that
//! draw names give no value twice.

use std::fmt::{Result, Write};

type Family = (&'static str, fn(u64, &mut String) -> Result);

pub const FAMILIES: [Family; 10] = [
    ("projections and their partitions", projection),
    ("aggregates by random uuid (v4)", aggregate),
    ("payments by uuid in the order of time (v7)", payment),
    ("outboxes by region, topic and partition", outbox),
    ("numbers from 1 on", number),
    ("e-mail addresses", address),
    ("a long beginning in common", beginning),
    ("a long end in common", end),
    ("pods", pod),
    ("not in ASCII", foreign),
];

fn projection(n: u64, name: &mut String) -> Result {
    const OF: [&str; 10] = [
        "orders-by-customer",
        "orders-by-day",
        "open-invoices",
        "customer-balance",
        "stock-levels",
        "search-index",
        "shipments",
        "audit-log",
        "revenue-by-region",
        "recommendations",
    ]; // fmt: skip
    let (of, n) = of(&OF, n);
    write!(name, "projection:{of}:{n:06}")
}

fn aggregate(n: u64, name: &mut String) -> Result {
    let (high, low) = (mix(2 * n), mix(2 * n + 1));
    write!(name, "tenant-{:04}/order-", n % 5_000)?;
    uuid(name, high & !0xf000 | 0x4000, low & !(3 << 62) | 2 << 62)
}

/// Forty payments have the same millisecond.
fn payment(n: u64, name: &mut String) -> Result {
    let (since, drawn) = (1_760_000_000_000 + n / 40, mix(n));
    write!(name, "payment-")?;
    uuid(name, since << 16 | 0x7000 | drawn >> 52, mix(drawn) & !(3 << 62) | 2 << 62)
}

fn outbox(n: u64, name: &mut String) -> Result {
    const REGIONS: [&str; 6] = ["eu-west-1", "eu-central-1", "us-east-1", "us-east-2", "ap-southeast-2", "sa-east-1"];
    let (region, n) = of(&REGIONS, n);
    write!(name, "outbox/{region}/topic-{:04}/{}", n / 32, n % 32)
}

fn number(n: u64, name: &mut String) -> Result {
    write!(name, "{}", n + 1)
}

fn address(n: u64, name: &mut String) -> Result {
    const FIRST: [&str; 12] =
        ["mia", "noah", "emma", "liam", "olivia", "lucas", "sofia", "ben", "hannah", "elias", "ava", "jonas"];
    const LAST: [&str; 10] =
        ["smith", "mueller", "garcia", "nguyen", "rossi", "kowalski", "silva", "jones", "dubois", "larsen"];
    const AT: [&str; 4] = ["example.com", "mail.example.org", "example.net", "post.example.com"];
    let (first, n) = of(&FIRST, n);
    let (last, n) = of(&LAST, n);
    let (at, n) = of(&AT, n);
    write!(name, "{first}.{last}{n}@{at}")
}

fn beginning(n: u64, name: &mut String) -> Result {
    const BEGINNING: &str =
        "urn:example:production:eu-central-1:account/123456789012/service/billing/stream/customer-ledger/partition/";
    write!(name, "{BEGINNING}{n}")
}

fn end(n: u64, name: &mut String) -> Result {
    write!(name, "{n:07}.customer-ledger.streams.billing.services.production.eu-central-1.example.internal")
}

/// Makes names as Kubernetes does.
fn pod(n: u64, name: &mut String) -> Result {
    const DIGITS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    const OF: [&str; 4] = ["orders-consumer", "billing-worker", "mailer", "search-indexer"];
    let (of, n) = of(&OF, n);
    write!(name, "{of}-")?;
    // The step shares no factor with the number of all such names, so it visits each name once before it repeats one.
    let mut rest = n * 5_915_587_277 % 27u64.pow(10);
    for digit in 0..10 {
        if digit == 5 {
            name.write_char('-')?;
        }
        name.write_char(char::from(DIGITS[(rest % 27) as usize]))?;
        rest /= 27;
    }
    Ok(())
}

fn foreign(n: u64, name: &mut String) -> Result {
    const OF: [&str; 8] = [
        "Bestellung/Köln",
        "注文/東京",
        "заказ/Москва",
        "commande/Besançon",
        "طلب/القاهرة",
        "주문/서울",
        "zamówienie/Łódź",
        "🛒/🇧🇷",
    ];
    let (of, n) = of(&OF, n);
    write!(name, "{of}/{n}")
}

/// Takes the names in turn. Returns the name and the quotient of the number.
fn of<'a>(names: &[&'a str], n: u64) -> (&'a str, u64) {
    let count = names.len() as u64;
    (names[(n % count) as usize], n / count)
}

/// Returns the n-th number of splitmix64.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

fn uuid(name: &mut String, high: u64, low: u64) -> Result {
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    write!(name, "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff)
}
