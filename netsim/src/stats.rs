//! Measures of rates and queue lengths.

/// Returns the mean; 0 of no values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the largest value; 0 of no values.
pub fn maximum(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Returns the standard deviation in relation to the mean.
pub fn variation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: Vec<f64> = values.iter().map(|value| (value - mean).powi(2)).collect();
    self::mean(&squares).sqrt() / mean
}

/// Returns Jain's fairness index: 1 if all shares are equal, 1/n if one of n has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|x| x * x).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares)
}

/// Returns a percentile of values, which are sorted; `None` of no values.
pub fn percentile<T: Copy>(sorted: &[T], percent: f64) -> Option<T> {
    let index = (sorted.len() as f64 * percent / 100.0) as usize;
    sorted.get(index.min(sorted.len().checked_sub(1)?)).copied()
}
