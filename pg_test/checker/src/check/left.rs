//! The end: once the faults have stopped, each client gets each resource within the time given. After all clients have
//! departed, nothing of them remains: no session, no lease, no place in line, and nothing for the worker to do.

use super::facts::Facts;
use super::fault::Fault;
use crate::history::Call;

const CHECK: &str = "the end";

pub fn check(facts: &Facts) -> Option<Fault> {
    starved(facts).or_else(|| {
        let (what, count) = facts.history.left.iter().find(|(_, count)| *count > 0)?;
        Some(Fault::new(CHECK, format!("everybody has left, and {count} {what} are left"), []))
    })
}

fn starved(facts: &Facts) -> Option<Fault> {
    let (calm, clients, resources) = facts.history.calm.as_ref()?;
    for client in clients {
        for resource in resources {
            let was = |(at, who, what): &(u64, String, String)| (who, what) == (client, resource) && at >= calm;
            if !facts.history.served.iter().any(was) {
                let asked = |call: &&Call| {
                    call.client == *client && call.from >= *calm && call.resource.as_ref() == Some(resource)
                };
                let mut asked: Vec<&Call> = facts.history.calls.iter().filter(asked).collect();
                let last = asked.split_off(asked.len().saturating_sub(3));
                let what = format!("{client} has not got {resource} though there were no more faults");
                return Some(Fault::new(CHECK, what, asked.into_iter().take(3).chain(last)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::fabricate::Story;
    use super::*;

    #[test]
    fn whoever_is_not_served_is_found() {
        let mut story = Story::of(&["a"]);
        story.0.calm = Some((100_000, vec!["a".into()], vec!["r".into()]));
        story.acquire(110..111, "a", "queued", 0);
        story.0.served.push((90_000, "a".into(), "r".into()));
        assert!(story.by(check).is_some_and(|fault| fault.proof.len() == 1));
        story.0.served.push((120_000, "a".into(), "r".into()));
        assert!(story.by(check).is_none());
    }

    #[test]
    fn what_is_left_is_found() {
        let mut story = Story::default();
        story.0.left = vec![("sessions".into(), 0), ("places in line".into(), 2)];
        assert!(story.by(check).is_some_and(|fault| fault.what.contains("2 places in line")));
    }
}
