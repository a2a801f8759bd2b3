//! Rows as a Parquet file. Columns are written directly: Parquet's writer for Arrow would take a
//! large part of the command's size.

use std::sync::Arc;

use ::parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use ::parquet::schema::types::{Type, TypePtr};

use super::{CellKind, Column, columns};
use crate::error::StudyError;
use crate::run::Row;

/// The level of a value that a row has, in a column without nesting.
const PRESENT: i16 = 1;
const ABSENT: i16 = 0;

/// The rows as a Parquet file: texts, unsigned 64-bit numbers and doubles; values that a run does
/// not have are null.
///
/// # Errors
/// [`StudyError::Rows`]; no rows are known to cause it.
pub fn parquet(rows: &[Row]) -> Result<Vec<u8>, StudyError> {
    write(rows, &columns(rows))
        .map_err(|error| StudyError::Rows { format: "Parquet", reason: error.to_string() })
}

fn write(rows: &[Row], columns: &[Column]) -> Result<Vec<u8>, ParquetError> {
    let fields = columns.iter().map(field).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("schema").with_fields(fields).build()?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
    let mut group = file.next_row_group()?;
    for column in columns {
        let Some(writer) = group.next_column()? else { break };
        let values = rows.iter().map(|row| column.value(row));
        match column.kind() {
            CellKind::Text => {
                let texts = values.map(|value| Some(ByteArray::from(value?.to_string().into_bytes())));
                write_column::<ByteArrayType>(writer, texts)?;
            }
            // Parquet keeps unsigned numbers as signed ones of the same bits.
            CellKind::Whole => {
                write_column::<Int64Type>(writer, values.map(|value| Some(value?.whole()? as i64)))?;
            }
            CellKind::Real => write_column::<DoubleType>(writer, values.map(|value| value?.real()))?,
        }
    }
    group.close()?;
    file.into_inner()
}

/// The schema of a column.
fn field(column: &Column) -> Result<TypePtr, ParquetError> {
    let (physical, logical) = match column.kind() {
        CellKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        CellKind::Whole => (Physical::INT64, Some(LogicalType::integer(64, false))),
        CellKind::Real => (Physical::DOUBLE, None),
    };
    let builder = Type::primitive_type_builder(column.name, physical);
    Ok(Arc::new(builder.with_repetition(Repetition::OPTIONAL).with_logical_type(logical).build()?))
}

fn write_column<T: DataType>(
    mut writer: SerializedColumnWriter<'_>,
    cells: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let mut values = Vec::new();
    let mut levels = Vec::new();
    for cell in cells {
        levels.push(if cell.is_some() { PRESENT } else { ABSENT });
        values.extend(cell);
    }
    writer.typed::<T>().write_batch(&values, Some(&levels), None)?;
    writer.close()
}
