//! Vectors of `f32`: what each instruction set gives an inner loop, which is written once over
//! [`Lanes`] ([`simd`](super::simd)).

/// One instruction set's vector of `f32`, for the micro-kernel.
///
/// The vector functions are `unsafe` because calling them needs the instructions: that holds
/// inside [`per_isa!`](super::simd::per_isa).
pub(super) trait Lanes {
    /// The vector.
    type Vector: Copy;
    /// How many `f32` it has.
    const WIDTH: usize;
    /// How many rows of the first operand the registers hold accumulators for: 4 or 8.
    const ROWS: usize;
    /// Rows of a tile of [`panel`](super::panel), whose accumulators the registers hold: 14 or 6.
    const TILE_ROWS: usize;

    /// `a * b + c`, fused where that is one instruction.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;

    /// All zero.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn zero() -> Self::Vector;

    /// `WIDTH` elements, at any alignment.
    ///
    /// # Safety
    /// The machine has the instructions, and `from` is valid for reading `WIDTH` elements.
    unsafe fn load(from: *const f32) -> Self::Vector;

    /// `count` elements, then zeros.
    ///
    /// # Safety
    /// The machine has the instructions, `from` is valid for reading `count` elements, and
    /// `count < WIDTH`.
    unsafe fn load_first(from: *const f32, count: usize) -> Self::Vector;

    /// One value in all lanes.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn splat(value: f32) -> Self::Vector;

    /// Writes `WIDTH` elements, at any alignment.
    ///
    /// # Safety
    /// The machine has the instructions, and `to` is valid for writing `WIDTH` elements.
    unsafe fn store(to: *mut f32, vector: Self::Vector);

    /// Writes the lowest byte of each lane's bits, at any alignment.
    ///
    /// # Safety
    /// The machine has the instructions, and `to` is valid for writing `WIDTH` bytes.
    unsafe fn store_low_bytes(to: *mut i8, vector: Self::Vector);

    /// The sum of signed bytes.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn sum_bytes(bytes: &[i8; 16]) -> i32;

    /// `WIDTH` numbers in binary16.
    ///
    /// # Safety
    /// The machine has the instructions, and `from` is valid for reading `2 * WIDTH` bytes.
    unsafe fn load_f16(from: *const u8) -> Self::Vector;

    /// `WIDTH` numbers in bfloat16.
    ///
    /// # Safety
    /// The machine has the instructions, and `from` is valid for reading `2 * WIDTH` bytes.
    unsafe fn load_bf16(from: *const u8) -> Self::Vector;

    /// `a + b`.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a - b`.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn subtract(a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// The elements of `a` and then `b` at even places, and those at odd ones.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn even_and_odd(a: Self::Vector, b: Self::Vector) -> [Self::Vector; 2];

    /// The larger one of each lane; `b` where one is no number.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn larger(a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// 2 to the power of each lane, up to 127 at most: within 2 units in the last place, zero below
    /// -127. A NaN stays one.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn exp2(x: Self::Vector) -> Self::Vector;

    /// `a * b`.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn multiply(a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a * b + c`.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn multiply_add(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// The sum over the lanes of each vector; all eight are added in the same order.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn sums(vectors: &[Self::Vector; 8]) -> [f32; 8];

    /// Writes eight elements of each of eight rows as the columns of eight others: rows begin
    /// `from_stride` and `to_stride` apart.
    ///
    /// # Safety
    /// The machine has the instructions; all eight elements of each row are valid for reading from
    /// `from` and for writing to `to`, and the two do not overlap.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);

    /// The columns of a square of `WIDTH` words of 32 bits from each of the first `WIDTH` rows: of
    /// word 0, of word 1, and so on up to `WIDTH`. `at` is where a row's words begin, in bytes from
    /// its start.
    ///
    /// # Safety
    /// The machine has the instructions, and of each of these rows `4 * WIDTH` bytes at `at` are
    /// valid for reading.
    unsafe fn transposed(rows: &[*const u8; SQUARE_MAX], at: usize) -> [Self::Vector; SQUARE_MAX];

    /// Two numbers in binary16 of each word, that of the low half first.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn f16_pairs(words: Self::Vector) -> [Self::Vector; 2];

    /// Two numbers in bfloat16 of each word, that of the low half first.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn bf16_pairs(words: Self::Vector) -> [Self::Vector; 2];
}

/// The side of the largest square that [`Lanes::transposed`] turns.
pub(super) const SQUARE_MAX: usize = 16;
