//! Arithmetic on polynomials over GF(2) modulo that of CRC-32, and the tables that come from it.
//!
//! As in the CRC itself, the bits are in reflected order: the highest one is the coefficient of
//! x^0, the lowest one of x^31. All but [`multiply`] runs at compile time.

/// The polynomial, without its x^32.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1.
pub(super) const ONE: u32 = 1 << 31;
/// The polynomial x.
pub(super) const X: u32 = 1 << 30;
/// The power of x that is 1 again. The polynomial is primitive, so it is the number of all others.
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

/// x to a power.
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

/// The powers of x^-`step`, from the 0th.
pub(super) const fn back_steps<const N: usize>(step: u64) -> [u32; N] {
    let one_step = x_to_the(ORDER - step);
    let mut steps = [ONE; N];
    let mut i = 1;
    while i < N {
        steps[i] = multiply(steps[i - 1], one_step);
        i += 1;
    }
    steps
}

/// What each value of a byte does to the CRC.
pub(super) type Table = [u32; 256];

/// The table of a byte that is followed by `after` bytes.
const fn table(after: usize) -> Table {
    let shift = x_to_the(8 * (after as u64 + 1));
    let mut table = [0; 256];
    let mut value = 1;
    while value < table.len() {
        // The lowest set bit on its own, and the others, which have been done.
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

/// The tables of a field of `N` bytes that is followed by `after` bytes.
pub(super) const fn tables<const N: usize>(after: usize) -> [Table; N] {
    let mut tables = [[0; 256]; N];
    let mut i = 0;
    while i < N {
        tables[i] = table(after + N - 1 - i);
        i += 1;
    }
    tables
}
