//! How a convolution is cut into blocks, and by which kernel: as the tiles of `conv.cuh`,
//! `conv_half.cu` and `conv_exact.cu` are.

use super::super::Products;
use crate::backend::kernels::ConvShape;

/// Output pixels of a block.
pub(super) const PIXELS: usize = 128;

/// Output channels of the three kinds of blocks.
const OUT_TILES: [usize; 3] = [8, 32, 128];

/// A convolution as its kernel sees it. Single pixels are one long row, so that only the last block
/// is not full.
pub(super) struct Tiling {
    pub(super) kernel: &'static str,
    pub(super) batch: usize,
    /// Of the input.
    pub(super) height: usize,
    /// Of the input.
    pub(super) width: usize,
    pub(super) out_height: usize,
    pub(super) out_width: usize,
    /// Input channels that are staged together.
    pub(super) chunk_channels: usize,
    in_channels: usize,
    out_channels: usize,
    taps: usize,
    /// Rows and columns of pixels, and output channels, of a block.
    tile: [usize; 3],
    /// Bytes of a packed weight.
    weight_bytes: usize,
}

impl Tiling {
    /// Of a whole convolution.
    ///
    /// # Panics
    /// If no kernel computes it.
    pub(super) fn of(shape: &ConvShape, products: Products) -> Tiling {
        let kernel = shape.kernel_height;
        let (wide, strided) = (kernel == 3, kernel == 3 && shape.stride == 2);
        assert!(matches!(kernel, 1 | 3) && kernel == shape.kernel_width, "kernels are 1 or 3");
        assert!(!wide || matches!(shape.stride, 1 | 2), "the stride is 1 or 2");
        assert!(matches!(shape.upsample, 1 | 2), "upsample is 1 or 2");
        assert_eq!(shape.pad_top, shape.pad_left, "zeros above and to the left");
        let out_tile = out_tile(shape.out_channels, wide && !strided);
        let halves = if strided { 16 } else { 32 };
        // As many bytes of either.
        let (chunk_channels, weight_bytes) = match products {
            Products::Half => (halves, 2),
            Products::Exact => (halves / 2, 4),
        };
        let [tile_height, tile_width] = if wide { [8, PIXELS / 8] } else { [1, PIXELS] };
        let mut tiling = Tiling {
            kernel: kernel_of(products, [kernel, if strided { 2 } else { 1 }, out_tile]),
            batch: shape.batch,
            height: shape.height,
            width: shape.width,
            out_height: shape.output_height(),
            out_width: shape.output_width(),
            chunk_channels,
            in_channels: shape.in_channels,
            out_channels: shape.out_channels,
            taps: kernel * kernel,
            tile: [tile_height, tile_width, out_tile],
            weight_bytes,
        };
        if shape.is_of_pixels() {
            let of_image = shape.height * shape.width;
            // A norm has factors of its own for each image.
            let images = if shape.norm.is_some() { shape.batch } else { 1 };
            tiling.flatten(images, shape.batch * of_image / images);
        }
        tiling
    }

    /// Of some pixels of a convolution of single ones.
    pub(super) fn of_pixels(shape: &ConvShape, products: Products, pixels: usize) -> Tiling {
        assert!(shape.is_of_pixels(), "single pixels");
        let mut tiling = Tiling::of(shape, products);
        tiling.flatten(1, pixels);
        tiling
    }

    fn flatten(&mut self, images: usize, pixels: usize) {
        self.batch = images;
        [self.height, self.out_height] = [1; 2];
        [self.width, self.out_width] = [pixels; 2];
    }

    /// Tiles of pixels below each other in an image.
    pub(super) fn tile_rows(&self) -> usize {
        self.out_height.div_ceil(self.tile[0])
    }

    /// Tiles of pixels beside each other.
    pub(super) fn tile_columns(&self) -> usize {
        self.out_width.div_ceil(self.tile[1])
    }

    /// Tiles of output channels.
    pub(super) fn out_tiles(&self) -> usize {
        self.out_channels.div_ceil(self.tile[2])
    }

    /// Output channels of whole tiles.
    pub(super) fn out_rows(&self) -> usize {
        self.out_tiles() * self.tile[2]
    }

    /// Chunks of input channels.
    pub(super) fn chunks(&self) -> usize {
        self.in_channels.div_ceil(self.chunk_channels)
    }

    /// Blocks of the grid.
    pub(super) fn blocks(&self) -> usize {
        self.batch * self.tile_rows() * self.tile_columns() * self.out_tiles()
    }

    /// Bytes of the packed weights.
    pub(super) fn packed_bytes(&self) -> u64 {
        let elements = self.out_rows() * self.chunks() * self.chunk_channels * self.taps;
        (elements * self.weight_bytes) as u64
    }
}

/// Output channels of a block: few where there are few, since what a tile has too many is computed
/// for nothing.
fn out_tile(out_channels: usize, has_smallest: bool) -> usize {
    let [smallest, small, large] = OUT_TILES;
    match out_channels {
        out if out <= smallest && has_smallest => smallest,
        out if out <= 2 * small => small,
        _ => large,
    }
}

/// By a kernel's sides, its stride and its output channels.
fn kernel_of(products: Products, sizes: [usize; 3]) -> &'static str {
    let [half, exact] = match sizes {
        [1, _, 32] => ["conv_half_k1_32", "conv_exact_k1_32"],
        [1, _, 128] => ["conv_half_k1_128", "conv_exact_k1_128"],
        [3, 1, 8] => ["conv_half_k3_8", "conv_exact_k3_8"],
        [3, 1, 32] => ["conv_half_k3_32", "conv_exact_k3_32"],
        [3, 1, 128] => ["conv_half_k3_128", "conv_exact_k3_128"],
        [3, 2, 32] => ["conv_half_k3_s2_32", "conv_exact_k3_s2_32"],
        [3, 2, 128] => ["conv_half_k3_s2_128", "conv_exact_k3_s2_128"],
        others => unreachable!("no tile is {others:?}"),
    };
    match products {
        Products::Half => half,
        Products::Exact => exact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first convolution of the last level of a VAE's decoder at 1024 x 1024.
    const LAST_LEVEL: ConvShape = ConvShape {
        batch: 1,
        height: 1024,
        width: 1024,
        in_channels: 256,
        out_channels: 128,
        kernel_height: 3,
        kernel_width: 3,
        stride: 1,
        pad_top: 1,
        pad_left: 1,
        pad_bottom: 1,
        pad_right: 1,
        upsample: 1,
        norm: None,
        accumulate: false,
    };

    #[test]
    fn packed_weights_are_whole_tiles() {
        for products in [Products::Half, Products::Exact] {
            let bytes = if products == Products::Half { 2 } else { 4 };
            let whole = Tiling::of(&LAST_LEVEL, products);
            assert_eq!(whole.blocks(), 1024 * 1024 / PIXELS);
            assert_eq!(whole.packed_bytes(), 9 * 256 * 128 * bytes);
            // To colours, of which a tile has 8, from 16 channels.
            let colours = ConvShape { in_channels: 16, out_channels: 3, ..LAST_LEVEL };
            let colours = Tiling::of(&colours, products);
            let chunk = if products == Products::Half { 32 } else { 16 };
            assert_eq!(colours.packed_bytes(), 9 * chunk * 8 * bytes);
        }
    }

    #[test]
    fn single_pixels_are_one_row() {
        let pixels = ConvShape { kernel_height: 1, kernel_width: 1, ..LAST_LEVEL };
        let pixels = ConvShape { pad_top: 0, pad_left: 0, pad_bottom: 0, pad_right: 0, ..pixels };
        let odd = ConvShape { batch: 2, height: 9, width: 15, ..pixels };
        assert_eq!(Tiling::of(&odd, Products::Half).blocks(), (2 * 9 * 15usize).div_ceil(PIXELS));
        let part = Tiling::of_pixels(&pixels, Products::Half, 129);
        assert_eq!((part.width, part.blocks()), (129, 2));
    }
}
