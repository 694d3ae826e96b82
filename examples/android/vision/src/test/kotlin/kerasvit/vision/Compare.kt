package kerasvit.vision

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * Runs this module on given data, for a comparison with Python (tests/test_android_example.py).
 *
 * The folder named on the command line holds `jobs.json`, a list of `{name, report, rgba, height, width,
 * row_stride, outputs}`, RGBA pixels in the files `rgba` and reports in the files `report`. For each job
 * it writes `<name>.f32`, the preprocessed picture, and prints a line `name<TAB>index<TAB>probability
 * <TAB>label` for each of the best classes of `outputs`, or `name<TAB>error<TAB>sentence`.
 */
fun main(arguments: Array<String>) {
    val folder = File(arguments.single())
    for (job in Json.read(folder.resolve("jobs.json").readText()) as List<*>) {
        val fields = job as Map<*, *>
        fun number(key: String) = (fields[key] as Double).toInt()
        val name = fields["name"] as String
        try {
            val model = Model.read(folder.resolve(fields["report"] as String).readText())
            val rgba = ByteBuffer.wrap(folder.resolve(fields["rgba"] as String).readBytes())
            val picture = Picture.fromRgba(rgba, number("height"), number("width"), number("row_stride"), model.channels)
            val input = preprocess(picture, model.height, model.width, model.rule)
            val bytes = ByteBuffer.allocate(4 * input.size).order(ByteOrder.LITTLE_ENDIAN)
            bytes.asFloatBuffer().put(input)
            folder.resolve("$name.f32").writeBytes(bytes.array())
            val outputs = (fields["outputs"] as List<*>).map { (it as Double).toFloat() }.toFloatArray()
            for (one in best(outputs, model)) println("$name\t${one.index}\t${one.probability}\t${one.label}")
        } catch (error: IllegalArgumentException) {
            println("$name\terror\t${error.message}")
        }
    }
}
