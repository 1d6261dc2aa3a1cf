//go:build cuda && race

package cuda

const raceDetector = true
