//! What figures show: summaries, changes, what others published, recommendations, and reports of all of it.

pub mod changes;
pub mod pooled;
pub mod published;
pub mod recommend;
pub mod report;
pub mod study;
pub mod summary;

/// Each once, in the order in which they come first.
pub(crate) fn once<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.fold(Vec::new(), |mut seen, one| {
        if !seen.contains(&one) {
            seen.push(one);
        }
        seen
    })
}

/// Those that are alike together, in the order in which the first of them come.
pub(crate) fn grouped<T>(all: impl IntoIterator<Item = T>, alike: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for one in all {
        match groups.iter_mut().find(|group| alike(&group[0], &one)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}
