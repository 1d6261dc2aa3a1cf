//go:build !race

package lane

const raceSlowdown = 1
