//! Arithmetic on polynomials over GF(2) modulo the CRC-32 polynomial, and the tables built from it.
//!
//! As in the CRC, bits are in reflected order: the highest bit is the coefficient of x^0, the
//! lowest that of x^31. Everything but [`multiply`] is evaluated at compile time.

/// The CRC-32 polynomial, without its x^32 term.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1.
pub(super) const ONE: u32 = 1 << 31;
/// The polynomial x.
pub(super) const X: u32 = 1 << 30;
/// The order of x. The polynomial is primitive, so every nonzero polynomial is a power of x.
pub(super) const ORDER: u64 = u32::MAX as u64;

/// The product of two polynomials.
pub(super) const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & 0u32.wrapping_sub((a >> bit) & 1);
        b = (b >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(b & 1));
    }
    product
}

/// Returns x to a power.
pub(super) const fn x_to_the(mut power: u64) -> u32 {
    let mut result = ONE;
    let mut square = X;
    while power > 0 {
        if power & 1 == 1 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        power >>= 1;
    }
    result
}

/// Returns the powers of x^-`step`, from the 0th.
pub(super) const fn inverse_powers<const N: usize>(step: u64) -> [u32; N] {
    let one_step = x_to_the(ORDER - step);
    let mut steps = [ONE; N];
    let mut i = 1;
    while i < N {
        steps[i] = multiply(steps[i - 1], one_step);
        i += 1;
    }
    steps
}

/// The contribution of each value of a byte to the CRC.
pub(super) type Table = [u32; 256];

/// Builds the table of a byte that `after` bytes follow.
const fn table(after: usize) -> Table {
    let shift = x_to_the(8 * (after as u64 + 1));
    let mut table = [0; 256];
    let mut value = 1;
    while value < table.len() {
        // Linearity: combine the entry of the lowest set bit with that of the others, computed
        // before.
        let lowest = value & value.wrapping_neg();
        table[value] = if lowest == value {
            multiply(value as u32, shift)
        } else {
            table[lowest] ^ table[value ^ lowest]
        };
        value += 1;
    }
    table
}

/// Builds the tables of a field of `N` bytes that `after` bytes follow.
pub(super) const fn tables<const N: usize>(after: usize) -> [Table; N] {
    let mut tables = [[0; 256]; N];
    let mut i = 0;
    while i < N {
        tables[i] = table(after + N - 1 - i);
        i += 1;
    }
    tables
}
