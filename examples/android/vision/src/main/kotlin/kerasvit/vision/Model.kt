package kerasvit.vision

/** How a picture becomes the input of the network; the defaults are the original checkpoints' rule. */
class Rule(
    val resize: String = "stretch",
    val method: String = "bilinear",
    val antialias: Boolean = false,
    val resizeTo: Int? = null,
    val truncate: Boolean = false,
    val mean: List<Float> = listOf(127.5f),
    val std: List<Float> = listOf(127.5f),
    val rounded: Boolean = false,
) {
    companion object {
        /** From the fields a report names: those that differ from the defaults. */
        fun read(fields: Map<String, Any?>): Rule {
            val default = Rule()
            return Rule(
                resize = fields["resize"] as String? ?: default.resize,
                method = fields["method"] as String? ?: default.method,
                antialias = fields["antialias"] as Boolean? ?: default.antialias,
                resizeTo = (fields["resize_to"] as Double?)?.toInt(),
                truncate = fields["truncate"] as Boolean? ?: default.truncate,
                mean = floats(fields["mean"]) ?: default.mean,
                std = floats(fields["std"]) ?: default.std,
                rounded = fields["rounded"] as Boolean? ?: default.rounded,
            )
        }

        private fun floats(values: Any?): List<Float>? = (values as List<*>?)?.map { (it as Double).toFloat() }
    }
}

/** What an app has to know of a model, from the report that keras-vit writes beside the file. */
class Model(
    val name: String,
    val height: Int,
    val width: Int,
    val channels: Int,
    val output: String,
    val labels: List<String>,
    val sigmoid: Boolean,
    val rule: Rule,
) {
    companion object {
        /**
         * @param report the text of `model.tflite.json`.
         * @throws IllegalArgumentException it is none, or of a file that this app cannot run.
         */
        fun read(report: String): Model =
            try {
                describe(Json.read(report).fields())
            } catch (error: ClassCastException) {
                throw IllegalArgumentException("This is no report of keras-vit: ${error.message}.")
            } catch (error: NullPointerException) {
                throw IllegalArgumentException("This is no report of keras-vit: something is missing in it.")
            }

        private fun describe(report: Map<String, Any?>): Model {
            require(report["format"] == "litert") {
                "The report is of ${report["format"]}, expected one of a .tflite file."
            }
            val signature = report["signatures"].fields()["serving_default"].fields()
            val (shape, type) = signature["inputs"].fields().values.first() as List<*>
            val (batch, height, width, channels) = (shape as List<*>).map { (it as Double?)?.toInt() }
            val output = signature["outputs"].fields().keys.first()
            require(batch == 1) { "This file takes ${batch ?: "any number of"} images at once: export it with --batch 1." }
            require(type == "float32") { "This file takes $type: export it with --input float32." }
            require(channels == 1 || channels == 3) { "This file takes $channels channels, pictures have 1 or 3." }
            require(output == "probabilities" || output == "logits") {
                "This file gives $output: export it with --output probabilities."
            }
            val source = report["source"].fields()
            val card = source["card"]?.fields()
            return Model(
                name = card?.let { "${it["variant"]}@${it["tag"]}" } ?: report["artifact"] as String,
                height = height!!,
                width = width!!,
                channels = channels,
                output = output,
                labels = (report["class_names"] as List<*>).map { it as String },
                sigmoid = source["spec"].fields()["classifier_activation"] == "sigmoid",
                rule = Rule.read(card?.get("preprocessing")?.fields() ?: emptyMap()),
            )
        }

        @Suppress("UNCHECKED_CAST")
        private fun Any?.fields() = this as Map<String, Any?>
    }
}
