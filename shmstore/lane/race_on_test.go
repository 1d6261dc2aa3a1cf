//go:build race

package lane

// raceSlowdown shortens what only counts repetitions.
const raceSlowdown = 10
