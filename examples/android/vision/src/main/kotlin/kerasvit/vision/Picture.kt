package kerasvit.vision

import java.nio.ByteBuffer

/** Pixels in 0..255: `data` holds height * width * channels bytes, row by row. */
class Picture(val data: ByteArray, val height: Int, val width: Int, val channels: Int) {
    init {
        require(height > 0 && width > 0 && data.size == height * width * channels) {
            "A picture of $height x $width with $channels channels has ${height * width * channels} bytes, got ${data.size}."
        }
    }

    companion object {
        /**
         * Grey or RGB from RGBA rows, as a camera or a bitmap gives them; alpha is ignored.
         *
         * @param rowStride bytes from one row to the next, at least 4 * width.
         * @param channels 1 (ITU-R 601 luma, as Pillow computes it) or 3.
         */
        fun fromRgba(rgba: ByteBuffer, height: Int, width: Int, rowStride: Int, channels: Int): Picture {
            require(channels == 1 || channels == 3) { "Pictures have 1 or 3 channels, asked for $channels." }
            val start = rgba.position()
            val out = ByteArray(height * width * channels)
            var i = 0
            for (y in 0 until height) {
                for (x in 0 until width) {
                    val at = start + y * rowStride + 4 * x
                    if (channels == 3) {
                        for (c in 0 until 3) out[i++] = rgba.get(at + c)
                    } else {
                        val (r, g, b) = List(3) { rgba.get(at + it).toInt() and 0xff }
                        out[i++] = ((r * 19595 + g * 38470 + b * 7471 + 0x8000) shr 16).toByte()
                    }
                }
            }
            return Picture(out, height, width, channels)
        }
    }
}
