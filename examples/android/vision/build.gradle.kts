// Plain Kotlin: no Android, no libraries, so that it runs and is tested anywhere.
plugins {
    id("org.jetbrains.kotlin.jvm")
}

kotlin {
    jvmToolchain(17)
}
