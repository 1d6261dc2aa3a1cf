// Package wav reads and writes RIFF/WAVE streams of 16-bit PCM, mono or stereo,
// sample by sample as they come: through pipes as well as from files.
//
// # Reading
//
// A Reader never seeks and never reads beyond the samples. It skips chunks
// before the data (LIST, fact and any other, with their padding), accepts
// WAVE_FORMAT_EXTENSIBLE with the PCM subformat, and does not rely on the size
// of the whole file, which many writers get wrong. Writers into a pipe cannot
// know the size of the data and leave a placeholder there; samples are then read
// up to the end of the stream. Bytes after the data are not read.
//
// The bytes are not trusted. A Reader uses a fixed buffer, independent of the
// sizes in the stream, refuses a header that does not reach the data within its
// limits, and reports every error of the format as a *FormatError with the byte
// offset. Samples before the error are delivered.
//
// # Writing
//
// A Writer writes its header at once, with placeholders for the sizes, so that
// its output can be read while it grows. Where the sink can seek, Close puts the
// sizes in; a crash before that leaves a file that readers of placeholders, the
// Reader here among them, read to its end. Every WriteSamples reaches the sink
// before it returns.
//
// A Reader or a Writer belongs to one goroutine at a time. Neither closes the
// stream below it.
package wav
