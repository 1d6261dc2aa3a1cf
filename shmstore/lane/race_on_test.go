//go:build race

package lane

// raceSlowdown divides numbers of repetitions.
const raceSlowdown = 10
