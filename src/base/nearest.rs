//! How near two words are to each other: for hints that name what a user may have meant.

/// Returns how many letters must be added, removed or replaced to make one word of another; `None` if more than `most`.
/// The time grows with the length of the words times `most`.
pub fn distance(one: &str, other: &str, most: usize) -> Option<usize> {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > most {
        return None;
    }
    // Cells away from the diagonal by more than `most` cannot be part of the answer.
    let far = most + 1;
    let mut row: Vec<usize> = (0..=other.len()).map(|j| j.min(far)).collect();
    for (i, a) in one.iter().enumerate() {
        let (from, to) = ((i + 1).saturating_sub(most).max(1), (i + 1 + most).min(other.len()));
        let mut diagonal = row[from - 1];
        row[from - 1] = if from == 1 { (i + 1).min(far) } else { far };
        for j in from..=to {
            let replaced = diagonal + usize::from(*a != other[j - 1]);
            let removed = if j == i + 1 + most { far } else { row[j] + 1 };
            diagonal = row[j];
            row[j] = replaced.min(removed).min(row[j - 1] + 1).min(far);
        }
    }
    row.last().copied().filter(|letters| *letters <= most)
}

/// Returns a name as it is compared with others: without blanks, in small letters.
pub fn folded(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_whitespace()).flat_map(char::to_lowercase).collect()
}

/// Returns how many letters may differ for a hint: a third of the word's, and 3 at most.
pub fn few(word: &str) -> usize {
    (word.chars().count() / 3).min(3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat_n;

    #[test]
    fn a_distance_counts_letters() {
        assert_eq!(["", "kitten", "ab", "sitting"].map(|word| distance(word, "sitting", 7)), [7, 3, 7, 0].map(Some));
        assert_eq!(
            ["kitten", "sitting", "sittings"].map(|word| distance(word, "sitting", 2)),
            [None, Some(0), Some(1)]
        );
        assert_eq!((distance("", "", 0), distance("a", "b", 0), distance("a", "b", 1)), (Some(0), None, Some(1)));
    }

    #[test]
    fn a_bound_changes_no_answer_within_it() {
        let words: Vec<String> = (0..3usize.pow(4))
            .map(|n| {
                ["a", "b", ""][n % 3].to_owned()
                    + ["a", "b", ""][n / 3 % 3]
                    + ["a", "c", ""][n / 9 % 3]
                    + ["b", "c", ""][n / 27]
            })
            .collect();
        for one in &words {
            for other in &words {
                let exact = distance(one, other, 9);
                for most in 0..5 {
                    assert_eq!(
                        distance(one, other, most),
                        exact.filter(|letters| *letters <= most),
                        "{one} {other} {most}"
                    );
                }
            }
        }
        let long: String = repeat_n('x', 255).collect();
        assert_eq!(distance(&long, &long[1..], 3), Some(1));
    }

    #[test]
    fn case_and_blanks_fold() {
        assert_eq!([" Orders", "ORD ERS\t", "orders"].map(folded), ["orders", "orders", "orders"]);
        assert_eq!(["", "ab", "abc", &"x".repeat(50)].map(few), [0, 0, 1, 3]);
    }
}
