package kerasvit.vision

/**
 * Reads JSON: objects as `Map<String, Any?>`, arrays as `List<Any?>`, numbers as `Double`.
 *
 * The report beside a model is all it has to read; org.json is Android's, and this module has none of
 * Android.
 */
class Json private constructor(private val text: String) {
    private var at = 0

    private fun value(depth: Int = 0): Any? {
        if (depth > MAX_DEPTH) fail("more than $MAX_DEPTH levels")
        space()
        return when (val first = peek()) {
            '{' -> members(depth)
            '[' -> elements(depth)
            '"' -> string()
            't' -> word("true", true)
            'f' -> word("false", false)
            'n' -> word("null", null)
            else -> if (first == '-' || first in '0'..'9') number() else fail("'$first'")
        }
    }

    private fun members(depth: Int): Map<String, Any?> {
        val found = LinkedHashMap<String, Any?>()
        list('}') {
            space()
            val key = string()
            space()
            take(':')
            found[key] = value(depth + 1)
        }
        return found
    }

    private fun elements(depth: Int): List<Any?> {
        val found = ArrayList<Any?>()
        list(']') { found.add(value(depth + 1)) }
        return found
    }

    /** What stands between a bracket and `end`, separated by commas. */
    private fun list(end: Char, one: () -> Unit) {
        at++
        space()
        if (peek() == end) {
            at++
            return
        }
        while (true) {
            one()
            space()
            if (peek() == end) {
                at++
                return
            }
            take(',')
        }
    }

    private fun string(): String {
        take('"')
        val out = StringBuilder()
        while (true) {
            when (val c = next()) {
                '"' -> return out.toString()
                '\\' -> out.append(escaped())
                else -> if (c < ' ') fail("a control character") else out.append(c)
            }
        }
    }

    private fun escaped(): Char =
        when (val c = next()) {
            '"', '\\', '/' -> c
            'b' -> '\b'
            'f' -> '\u000c'
            'n' -> '\n'
            'r' -> '\r'
            't' -> '\t'
            'u' -> {
                val digits = String(CharArray(4) { next() })
                if (!digits.all { it.isLetterOrDigit() }) fail("\\u$digits")
                (digits.toIntOrNull(16) ?: fail("\\u$digits")).toChar()
            }
            else -> fail("\\$c")
        }

    private fun number(): Double {
        val start = at
        while (at < text.length && (text[at].isDigit() || text[at] in "+-.eE")) at++
        val digits = text.substring(start, at)
        return digits.toDoubleOrNull() ?: fail("'$digits'")
    }

    private fun <T> word(word: String, value: T): T {
        if (!text.startsWith(word, at)) fail("'${peek()}'")
        at += word.length
        return value
    }

    private fun space() {
        while (at < text.length && text[at] in " \t\r\n") at++
    }

    private fun take(expected: Char) {
        if (next() != expected) {
            at--
            fail("'${text[at]}' in place of '$expected'")
        }
    }

    private fun peek(): Char = if (at < text.length) text[at] else fail("the end")

    private fun next(): Char = peek().also { at++ }

    private fun fail(what: String): Nothing =
        throw IllegalArgumentException("This is no JSON: $what at character $at.")

    companion object {
        private const val MAX_DEPTH = 100

        /** @throws IllegalArgumentException the text is no JSON. */
        fun read(text: String): Any? =
            with(Json(text)) {
                val found = value()
                space()
                if (at < text.length) fail("'${peek()}' after the end")
                found
            }
    }
}
