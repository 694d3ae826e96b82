package org.example.kerasvit

import android.content.res.AssetManager
import android.os.SystemClock
import com.google.ai.edge.litert.Accelerator
import com.google.ai.edge.litert.CompiledModel
import kerasvit.vision.Model
import kerasvit.vision.Picture
import kerasvit.vision.Prediction
import kerasvit.vision.best
import kerasvit.vision.preprocess
import java.nio.ByteBuffer

/** What the network says of one picture, and the milliseconds it took. */
class Answer(val best: List<Prediction>, val prepareMs: Long, val runMs: Long)

/** A `.tflite` file and its report, both in the assets of the app. Use it from one thread at a time. */
class Classifier(assets: AssetManager, file: String = "model.tflite") : AutoCloseable {
    val model = Model.read(assets.open("$file.json").bufferedReader().use { it.readText() })

    // The CPU takes every operation of these files; try Accelerator.GPU on your own phones.
    private val network = CompiledModel.create(assets, file, CompiledModel.Options(Accelerator.CPU))
    private val inputs = network.createInputBuffers()
    private val outputs = network.createOutputBuffers()

    /** Classifies RGBA pixels, `rowStride` bytes from one row to the next. */
    fun classify(rgba: ByteBuffer, height: Int, width: Int, rowStride: Int): Answer {
        val start = SystemClock.elapsedRealtime()
        val picture = Picture.fromRgba(rgba, height, width, rowStride, model.channels)
        inputs[0].writeFloat(preprocess(picture, model.height, model.width, model.rule))
        val prepared = SystemClock.elapsedRealtime()
        network.run(inputs, outputs)
        val found = outputs[0].readFloat()
        return Answer(best(found, model), prepared - start, SystemClock.elapsedRealtime() - prepared)
    }

    override fun close() {
        inputs.forEach { it.close() }
        outputs.forEach { it.close() }
        network.close()
    }
}
