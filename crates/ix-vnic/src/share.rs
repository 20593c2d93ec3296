//! A full link among tenants, by weight.

/// What each of `(weight, demand)` gets of `capacity`: what it wants where that is no more than its
/// part by weight; what others leave is divided again by weight among those that want more (weighted
/// max-min fairness). A weight of zero gets nothing while others want something.
pub fn shares(capacity: u64, tenants: &[(u32, u64)]) -> Vec<u64> {
    let mut given = vec![0; tenants.len()];
    let mut left = capacity;
    let mut open: Vec<usize> = (0..tenants.len()).filter(|i| tenants[*i].0 > 0).collect();
    loop {
        let weights: u128 = open.iter().map(|i| u128::from(tenants[*i].0)).sum();
        let part = |i: usize| {
            (u128::from(left) * u128::from(tenants[i].0)).checked_div(weights).unwrap_or(0) as u64
        };
        let (modest, greedy): (Vec<_>, Vec<_>) =
            open.iter().copied().partition(|i| tenants[*i].1 <= part(*i));
        if modest.is_empty() {
            greedy.iter().for_each(|i| given[*i] = part(*i));
            return given;
        }
        for i in modest {
            given[i] = tenants[i].1;
            left -= tenants[i].1;
        }
        open = greedy;
    }
}
