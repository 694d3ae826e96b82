package kerasvit.vision

import kotlin.math.exp

/** One class and how probable it is. */
data class Prediction(val label: String, val index: Int, val probability: Double)

/** The best classes from the outputs of the network: best first, and the first of equals first. */
fun best(outputs: FloatArray, model: Model, count: Int = 5): List<Prediction> {
    val values = outputs.map { it.toDouble() }
    val largest = values.max()
    val probabilities =
        when {
            model.output == "probabilities" -> values
            model.sigmoid -> values.map { 1 / (1 + exp(-it)) }
            else -> values.map { exp(it - largest) }.let { all -> all.sum().let { sum -> all.map { it / sum } } }
        }
    return probabilities.indices
        .sortedByDescending { probabilities[it] } // stable
        .take(count)
        .map { Prediction(model.labels.getOrElse(it) { i -> "class $i" }, it, probabilities[it]) }
}
