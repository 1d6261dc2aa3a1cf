//go:build race

package bench

// raceDetector leaves out what has races of its own.
const raceDetector = true
