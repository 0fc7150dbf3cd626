//! Messages as JSON trees: written and read by a schema, in any version.
//!
//! A tree that is written may leave out fields (they get their defaults) and may name fields that this version does
//! not have (they are left out), so that one tree serves all versions. Bytes and UUIDs are hex strings. Numbers may be
//! strings of digits.

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde_json::{Map, Value, json};

use crate::schema::{Field, Kind, Message};

/// Where unknown tagged fields of an answer are kept.
pub(crate) const UNKNOWN_TAGS: &str = "_tags";

/// Writes a message's body.
///
/// # Errors
/// The tree names a field that no version has, or holds something of another type.
pub(crate) fn write(message: &Message, version: i16, tree: &Value) -> Result<BytesMut> {
    let mut out = BytesMut::new();
    let flexible = message.flexible.contains(version);
    write_struct(&message.fields, version, flexible, tree, &mut out)?;
    Ok(out)
}

fn write_struct(fields: &[Field], version: i16, flexible: bool, tree: &Value, out: &mut BytesMut) -> Result<()> {
    let given = tree.as_object().with_context(|| format!("an object expected, found {tree}"))?;
    for name in given.keys() {
        ensure!(fields.iter().any(|field| field.name == *name), "there is no field {name}");
    }
    let mut tagged = Vec::new();
    for field in fields.iter().filter(|field| field.versions.contains(version)) {
        let value = given.get(&field.name);
        match field.tag {
            Some((tag, versions)) if versions.contains(version) => {
                if let Some(value) = value {
                    let mut bytes = BytesMut::new();
                    write_field(field, version, flexible, Some(value), &mut bytes)?;
                    tagged.push((tag, bytes));
                }
            }
            _ => write_field(field, version, flexible, value, out).with_context(|| field.name.clone())?,
        }
    }
    if flexible {
        tagged.sort_by_key(|(tag, _)| *tag);
        put_varint(out, tagged.len() as u32);
        for (tag, bytes) in tagged {
            put_varint(out, tag);
            put_varint(out, bytes.len() as u32);
            out.put_slice(&bytes);
        }
    }
    Ok(())
}

fn write_field(field: &Field, version: i16, flexible: bool, value: Option<&Value>, out: &mut BytesMut) -> Result<()> {
    let nullable = field.nullable.contains(version);
    let default = match &field.default {
        Some(text) if text == "null" => Value::Null,
        Some(text) => Value::String(text.clone()),
        None => empty(&field.kind),
    };
    let value = value.unwrap_or(&default);
    // A null that this version can't express is the empty value.
    let value = if value.is_null() && !nullable { &empty(&field.kind) } else { value };
    if nullable && let Kind::Struct(_) = field.kind {
        out.put_i8(if value.is_null() { -1 } else { 1 });
        if value.is_null() {
            return Ok(());
        }
    }
    write_value(&field.kind, version, flexible, value, out)
}

fn empty(kind: &Kind) -> Value {
    match kind {
        Kind::Bool => json!(false),
        Kind::Uuid => json!("00000000000000000000000000000000"),
        Kind::String | Kind::Bytes => json!(""),
        Kind::Struct(_) => json!({}),
        Kind::Array(_) => json!([]),
        _ => json!(0),
    }
}

fn write_value(kind: &Kind, version: i16, flexible: bool, value: &Value, out: &mut BytesMut) -> Result<()> {
    match kind {
        Kind::Bool => {
            out.put_u8(u8::from(value.as_bool().or_else(|| Some(value.as_str()? == "true")).context("bool")?))
        }
        Kind::Int8 => out.put_i8(integer(value)?.try_into()?),
        Kind::Int16 => out.put_i16(integer(value)?.try_into()?),
        Kind::Uint16 => out.put_u16(integer(value)?.try_into()?),
        Kind::Int32 => out.put_i32(integer(value)?.try_into()?),
        Kind::Int64 => out.put_i64(integer(value)?),
        Kind::Float64 => out.put_f64(value.as_f64().context("a number")?),
        Kind::Uuid => {
            let bytes = unhex(value.as_str().context("a UUID")?)?;
            ensure!(bytes.len() == 16, "a UUID of {} bytes", bytes.len());
            out.put_slice(&bytes);
        }
        Kind::String => match value.as_str() {
            Some(text) => {
                put_length(out, flexible, Some(text.len()), true);
                out.put_slice(text.as_bytes());
            }
            None => put_length(out, flexible, None, true),
        },
        Kind::Bytes => match value.as_str() {
            Some(text) => {
                let bytes = unhex(text)?;
                put_length(out, flexible, Some(bytes.len()), false);
                out.put_slice(&bytes);
            }
            None => put_length(out, flexible, None, false),
        },
        Kind::Struct(fields) => write_struct(fields, version, flexible, value, out)?,
        Kind::Array(of) => match value.as_array() {
            Some(items) => {
                put_length(out, flexible, Some(items.len()), false);
                for item in items {
                    write_value(of, version, flexible, item, out)?;
                }
            }
            None => put_length(out, flexible, None, false),
        },
    }
    Ok(())
}

fn integer(value: &Value) -> Result<i64> {
    let parsed = match value {
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
        other => other.as_i64(),
    };
    parsed.with_context(|| format!("a whole number expected, found {value}"))
}

fn put_length(out: &mut BytesMut, flexible: bool, length: Option<usize>, short: bool) {
    match (flexible, short) {
        (true, _) => put_varint(out, length.map_or(0, |length| length as u32 + 1)),
        (false, true) => out.put_i16(length.map_or(-1, |length| length as i16)),
        (false, false) => out.put_i32(length.map_or(-1, |length| length as i32)),
    }
}

fn put_varint(out: &mut BytesMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8(value as u8 & 0x7f | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Reads a message's body, to its last byte.
///
/// # Errors
/// The bytes don't follow the schema.
pub(crate) fn read(message: &Message, version: i16, mut bytes: Bytes) -> Result<Value> {
    let flexible = message.flexible.contains(version);
    let tree = read_struct(&message.fields, version, flexible, &mut bytes)?;
    ensure!(bytes.is_empty(), "{} bytes too many", bytes.len());
    Ok(tree)
}

fn read_struct(fields: &[Field], version: i16, flexible: bool, bytes: &mut Bytes) -> Result<Value> {
    let mut tree = Map::new();
    let here = || fields.iter().filter(|field| field.versions.contains(version));
    let is_tagged = |field: &Field| field.tag.is_some_and(|(_, versions)| versions.contains(version));
    for field in here().filter(|field| !is_tagged(field)) {
        let value = read_field(field, version, flexible, bytes).with_context(|| field.name.clone())?;
        tree.insert(field.name.clone(), value);
    }
    if flexible {
        for _ in 0..varint(bytes)? {
            let (tag, length) = (varint(bytes)?, varint(bytes)? as usize);
            ensure!(bytes.len() >= length, "a tagged field is cut short");
            let mut data = bytes.split_to(length);
            match here().find(|field| is_tagged(field) && field.tag.is_some_and(|(number, _)| number == tag)) {
                Some(field) => {
                    tree.insert(field.name.clone(), read_field(field, version, flexible, &mut data)?);
                    ensure!(data.is_empty(), "{} has bytes too many", field.name);
                }
                None => {
                    let unknown = tree.entry(UNKNOWN_TAGS).or_insert_with(|| json!({}));
                    unknown[tag.to_string()] = json!(hex(&data));
                }
            }
        }
    }
    Ok(tree.into())
}

fn read_field(field: &Field, version: i16, flexible: bool, bytes: &mut Bytes) -> Result<Value> {
    if let Kind::Struct(_) = field.kind
        && field.nullable.contains(version)
    {
        ensure!(bytes.has_remaining(), "cut short");
        if bytes.get_i8() < 0 {
            return Ok(Value::Null);
        }
    }
    read_value(&field.kind, version, flexible, bytes)
}

fn read_value(kind: &Kind, version: i16, flexible: bool, bytes: &mut Bytes) -> Result<Value> {
    let mut fixed = |length: usize| -> Result<Bytes> {
        ensure!(bytes.len() >= length, "cut short");
        Ok(bytes.split_to(length))
    };
    Ok(match kind {
        Kind::Bool => json!(fixed(1)?.get_u8() != 0),
        Kind::Int8 => json!(fixed(1)?.get_i8()),
        Kind::Int16 => json!(fixed(2)?.get_i16()),
        Kind::Uint16 => json!(fixed(2)?.get_u16()),
        Kind::Int32 => json!(fixed(4)?.get_i32()),
        Kind::Int64 => json!(fixed(8)?.get_i64()),
        Kind::Float64 => json!(fixed(8)?.get_f64()),
        Kind::Uuid => json!(hex(&fixed(16)?)),
        Kind::String | Kind::Bytes => {
            let short = matches!(kind, Kind::String);
            match length(bytes, flexible, short)? {
                None => Value::Null,
                Some(length) => {
                    ensure!(bytes.len() >= length, "cut short");
                    let data = bytes.split_to(length);
                    json!(if short { String::from_utf8(data.to_vec())? } else { hex(&data) })
                }
            }
        }
        Kind::Struct(fields) => read_struct(fields, version, flexible, bytes)?,
        Kind::Array(of) => match length(bytes, flexible, false)? {
            None => Value::Null,
            Some(count) => {
                ensure!(count <= bytes.len(), "an array of {count} in {} bytes", bytes.len());
                (0..count).map(|_| read_value(of, version, flexible, bytes)).collect::<Result<Vec<_>>>()?.into()
            }
        },
    })
}

fn length(bytes: &mut Bytes, flexible: bool, short: bool) -> Result<Option<usize>> {
    let length = match (flexible, short) {
        (true, _) => i64::from(varint(bytes)?) - 1,
        (false, true) => {
            ensure!(bytes.len() >= 2, "cut short");
            bytes.get_i16().into()
        }
        (false, false) => {
            ensure!(bytes.len() >= 4, "cut short");
            bytes.get_i32().into()
        }
    };
    Ok(usize::try_from(length).ok())
}

fn varint(bytes: &mut Bytes) -> Result<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        ensure!(bytes.has_remaining(), "cut short");
        let byte = bytes.get_u8();
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    bail!("a varint too long")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    ensure!(text.len().is_multiple_of(2), "an odd number of hex digits");
    let digits = |at: usize| Ok(u8::from_str_radix(&text[at..at + 2], 16)?);
    (0..text.len()).step_by(2).map(digits).collect()
}
