package org.example.kerasvit

import android.Manifest
import android.content.pm.PackageManager
import android.os.Bundle
import android.widget.TextView
import androidx.activity.ComponentActivity
import androidx.activity.result.contract.ActivityResultContracts
import androidx.camera.core.CameraSelector
import androidx.camera.core.ImageAnalysis
import androidx.camera.core.ImageProxy
import androidx.camera.core.Preview
import androidx.camera.lifecycle.ProcessCameraProvider
import androidx.camera.view.PreviewView
import androidx.core.content.ContextCompat
import java.io.IOException
import java.util.concurrent.Executors

/** Shows the camera, and below it the five best classes of what it sees. */
class MainActivity : ComponentActivity() {
    private lateinit var text: TextView
    private val worker = Executors.newSingleThreadExecutor()
    private var classifier: Classifier? = null // of the worker's thread

    private val permission =
        registerForActivityResult(ActivityResultContracts.RequestPermission()) { granted ->
            if (granted) startCamera() else text.setText(R.string.no_camera)
        }

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.main)
        text = findViewById(R.id.answer)
        worker.execute {
            try {
                classifier = Classifier(assets)
            } catch (_: IOException) {
                show(getString(R.string.no_model))
            } catch (error: Exception) {
                show(error.message ?: error.toString())
            }
        }
        if (ContextCompat.checkSelfPermission(this, Manifest.permission.CAMERA) == PackageManager.PERMISSION_GRANTED) {
            startCamera()
        } else {
            permission.launch(Manifest.permission.CAMERA)
        }
    }

    private fun startCamera() {
        val coming = ProcessCameraProvider.getInstance(this)
        coming.addListener(
            {
                val preview = Preview.Builder().build()
                preview.surfaceProvider = findViewById<PreviewView>(R.id.preview).surfaceProvider
                val analysis =
                    ImageAnalysis.Builder()
                        .setOutputImageFormat(ImageAnalysis.OUTPUT_IMAGE_FORMAT_RGBA_8888)
                        .setOutputImageRotationEnabled(true) // upright, as the network was trained
                        .setBackpressureStrategy(ImageAnalysis.STRATEGY_KEEP_ONLY_LATEST)
                        .build()
                analysis.setAnalyzer(worker) { image -> image.use(::classify) }
                val provider = coming.get()
                provider.unbindAll()
                provider.bindToLifecycle(this, CameraSelector.DEFAULT_BACK_CAMERA, preview, analysis)
            },
            ContextCompat.getMainExecutor(this),
        )
    }

    private fun classify(image: ImageProxy) {
        val classifier = classifier ?: return
        val plane = image.planes[0]
        try {
            val answer = classifier.classify(plane.buffer, image.height, image.width, plane.rowStride)
            val rows = answer.best.map { getString(R.string.row, it.label, 100 * it.probability) }
            val times = getString(R.string.times, classifier.model.name, answer.prepareMs, answer.runMs)
            show((rows + times).joinToString("\n"))
        } catch (error: Exception) {
            show(error.message ?: error.toString())
        }
    }

    private fun show(message: String) = runOnUiThread { text.text = message }

    override fun onDestroy() {
        super.onDestroy()
        worker.execute { classifier?.close() }
        worker.shutdown()
    }
}
