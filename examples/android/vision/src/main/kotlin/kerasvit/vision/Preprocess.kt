package kerasvit.vision

import kotlin.math.abs
import kotlin.math.ceil
import kotlin.math.floor
import kotlin.math.max
import kotlin.math.min
import kotlin.math.round

/**
 * A picture of any size as the input of the network: height * width * channels numbers, normalised.
 *
 * The arithmetic of keras_vit in float32, operation by operation, so that where a rule drops fractions
 * afterwards no grey level differs.
 *
 * @throws IllegalArgumentException the rule leaves the picture too small, or has other channels.
 */
fun preprocess(picture: Picture, height: Int, width: Int, rule: Rule): FloatArray {
    val channels = picture.channels
    require(rule.mean.size == 1 || rule.mean.size == channels) {
        "The rule is for ${rule.mean.size} channels, the picture has $channels."
    }
    val (high, wide) = resizedSize(picture, height, width, rule)
    require(high >= height && wide >= width) {
        "A picture of ${picture.height}x${picture.width} becomes ${high}x$wide, too small for the central " +
            "${height}x$width: take a larger one."
    }
    var pixels = FloatArray(picture.data.size) { (picture.data[it].toInt() and 0xff).toFloat() }
    if (high != picture.height || wide != picture.width) {
        var slack = 0f
        when {
            rule.method == "bilinear" && !rule.antialias -> pixels = bilinear(pixels, picture, high, wide)
            rule.method == "area" -> pixels = area(pixels, picture, high, wide)
            else -> {
                pixels = byKernels(pixels, picture, high, wide, rule)
                slack = 1e-3f // absorbs the rounding of sums: a flat area of 200 could come out as 199
            }
        }
        for (i in pixels.indices) {
            if (rule.truncate) {
                pixels[i] = floor((pixels[i] + slack).coerceIn(0f, 255f))
            } else if (rule.rounded) {
                pixels[i] = wholeLevel(pixels[i])
            }
        }
    }
    val top = (high - height) / 2
    val left = (wide - width) / 2
    return FloatArray(height * width * channels) {
        val c = it % channels
        val x = it / channels % width + left
        val y = it / channels / width + top
        val k = if (rule.mean.size == 1) 0 else c
        (pixels[(y * wide + x) * channels + c] - rule.mean[k]) / rule.std[k]
    }
}

/** Height and width after resizing and before the central crop. */
private fun resizedSize(picture: Picture, height: Int, width: Int, rule: Rule): Pair<Int, Int> {
    val shorter = min(height, width)
    return when (rule.resize) {
        "none" -> picture.height to picture.width
        "stretch" -> (rule.resizeTo ?: height) to (rule.resizeTo ?: width)
        else -> {
            val short = rule.resizeTo ?: shorter
            val ratio =
                max(
                    short * height / shorter.toDouble() / picture.height,
                    short * width / shorter.toDouble() / picture.width,
                )
            // Half to even, as Python rounds.
            round(picture.height * ratio).toInt() to round(picture.width * ratio).toInt()
        }
    }
}

private fun wholeLevel(value: Float): Float = floor(value.coerceIn(0f, 255f) + 0.5f)

/** Between four neighbours, edges repeated; along x first. */
private fun bilinear(pixels: FloatArray, picture: Picture, high: Int, wide: Int): FloatArray {
    val channels = picture.channels
    val rows = neighbours(picture.height, high)
    val columns = neighbours(picture.width, wide)
    val out = FloatArray(high * wide * channels)
    var i = 0
    for (row in rows) {
        val above = row.first * picture.width
        val below = row.second * picture.width
        for (column in columns) {
            for (c in 0 until channels) {
                fun at(line: Int, x: Int) = pixels[(line + x) * channels + c]
                val top = between(at(above, column.first), at(above, column.second), column.weight)
                val bottom = between(at(below, column.first), at(below, column.second), column.weight)
                out[i++] = between(top, bottom, row.weight)
            }
        }
    }
    return out
}

private fun between(a: Float, b: Float, weight: Float): Float = a + (b - a) * weight

private class Neighbours(val first: Int, val second: Int, val weight: Float)

private fun neighbours(old: Int, count: Int): List<Neighbours> {
    val scale = old.toFloat() / count.toFloat()
    return List(count) {
        val centre = (it + 0.5f) * scale - 0.5f
        val low = floor(centre)
        Neighbours(low.toInt().coerceIn(0, old - 1), ceil(centre).toInt().coerceIn(0, old - 1), centre - low)
    }
}

/** One old pixel and its part in a new one. */
private class Part(val index: Int, val weight: Float)

/** Means of the cells under each new pixel. */
private fun area(pixels: FloatArray, picture: Picture, high: Int, wide: Int): FloatArray {
    val channels = picture.channels
    val rows = cells(picture.height, high)
    val columns = cells(picture.width, wide)
    val factor = 1f / ((picture.height.toFloat() / high.toFloat()) * (picture.width.toFloat() / wide.toFloat()))
    val out = FloatArray(high * wide * channels)
    var i = 0
    for (row in rows) {
        for (column in columns) {
            for (c in 0 until channels) {
                var mean = 0f
                for (y in row) {
                    var across = 0f
                    for (x in column) across += pixels[(y.index * picture.width + x.index) * channels + c] * x.weight
                    mean += across * y.weight
                }
                out[i++] = mean * factor
            }
        }
    }
    return out
}

/** For each new pixel, the cells it covers and how much of them. */
private fun cells(old: Int, count: Int): List<List<Part>> {
    val scale = old.toFloat() / count.toFloat()
    return List(count) {
        val start = it * scale
        val end = (it + 1) * scale
        (floor(start).toInt() until ceil(end).toInt()).map { cell ->
            val beyond = cell + 1f > end
            val cut = if (beyond) scale else cell + 1f - start
            val inside = if (beyond) end - cell else 1f
            Part(cell.coerceIn(0, old - 1), if (cell < start) cut else inside)
        }
    }
}

/** Resampling as two sums of products, along x and then along y. */
private fun byKernels(pixels: FloatArray, picture: Picture, high: Int, wide: Int, rule: Rule): FloatArray {
    val channels = picture.channels
    val columns = kernels(picture.width, wide, rule)
    val rows = kernels(picture.height, high, rule)
    val across = FloatArray(picture.height * wide * channels)
    var i = 0
    for (y in 0 until picture.height) {
        for (column in columns) {
            for (c in 0 until channels) {
                var sum = 0.0
                for (x in column) sum += pixels[(y * picture.width + x.index) * channels + c].toDouble() * x.weight
                // Pillow keeps 8 bits between the two.
                across[i++] = if (rule.rounded) wholeLevel(sum.toFloat()) else sum.toFloat()
            }
        }
    }
    val out = FloatArray(high * wide * channels)
    i = 0
    for (row in rows) {
        for (x in 0 until wide * channels) {
            var sum = 0.0
            for (y in row) sum += across[y.index * wide * channels + x].toDouble() * y.weight
            out[i++] = sum.toFloat()
        }
    }
    return out
}

/** For each new pixel, the old ones that count and their weights. */
private fun kernels(old: Int, count: Int, rule: Rule): List<List<Part>> {
    val scale = old.toFloat() / count.toFloat()
    val stretch = if (rule.antialias) max(scale, 1f) else 1f
    val reach = ceil(2 * stretch).toInt() + 1
    return List(count) {
        val centre = (it + 0.5f) * scale - 0.5f
        val middle = floor(centre).toInt()
        val found =
            (max(0, middle - reach)..min(old - 1, middle + reach))
                .map { cell -> Part(cell, kernel(abs(centre - cell) / stretch, rule.method)) }
                .filter { part -> part.weight != 0f }
        var total = 0f
        for (part in found) total += part.weight
        found.map { part -> Part(part.index, part.weight / total) }
    }
}

private fun kernel(x: Float, method: String): Float =
    when {
        method == "bilinear" -> max(1f - x, 0f)
        x <= 1f -> (1.5f * x - 2.5f) * x * x + 1f
        x < 2f -> ((-0.5f * x + 2.5f) * x - 4f) * x + 2f
        else -> 0f
    }
