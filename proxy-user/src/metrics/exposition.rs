//! From declared metrics and their samples to OpenMetrics text.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;

use super::catalog::{Declaration, Kind};

/// What a scrape answers with; Prometheus 2.x and later, and the OpenTelemetry collector, read it.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A number.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Integer(u64),
    Float(f64),
    Distribution(Histogram),
    /// Of an [`Kind::Info`].
    One,
}

/// A number and the values of its metric's labels, in their order.
#[derive(Clone, Debug)]
pub(super) struct Sample<'a> {
    pub(super) labels: Vec<Cow<'a, str>>,
    pub(super) value: Value,
}

/// Writes one metric with all its samples.
pub(super) fn write<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &Declaration,
    samples: impl IntoIterator<Item = Sample<'a>>,
) -> fmt::Result {
    let kind = match metric.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
        Kind::Info => MetricType::Info,
    };
    let mut family = encoder.encode_descriptor(metric.family(), metric.meaning, None, kind)?;
    for Sample { labels, value } in samples {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}: one value for each label", metric.name);
        let labels: Vec<(&str, &str)> =
            metric.labels.iter().zip(&labels).map(|(label, value)| (label.name(), value.as_ref())).collect();
        if labels.is_empty() {
            // Without labels there is one series.
            return number(family, metric.kind, value);
        } else if let Value::One = value {
            family.encode_info(&labels)?;
        } else {
            number(family.encode_family(&labels)?, metric.kind, value)?;
        }
    }
    Ok(())
}

fn number(mut encoder: MetricEncoder<'_>, kind: Kind, value: Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Integer(n)) => encoder.encode_counter::<NoLabelSet, _, f64>(&n, None),
        (Kind::Counter, Value::Float(n)) => encoder.encode_counter::<NoLabelSet, _, f64>(&n, None),
        (Kind::Gauge, Value::Integer(n)) => encoder.encode_gauge(&n),
        (Kind::Gauge, Value::Float(n)) => encoder.encode_gauge(&n),
        (Kind::Histogram, Value::Distribution(h)) => h.encode(encoder),
        (kind, value) => {
            debug_assert!(false, "{value:?} is no value of a {kind:?}");
            Err(fmt::Error)
        }
    }
}
