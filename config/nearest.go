package config

import (
	"slices"
	"strings"
)

// nearest returns the candidate with the fewest edits to a word, the first of
// equals, and "" if there are no candidates.
func nearest(word string, candidates []string) string {
	best, fewest := "", 0
	for i, candidate := range candidates {
		if d := edits(word, candidate); i == 0 || d < fewest {
			best, fewest = candidate, d
		}
	}
	return best
}

// likely says whether a word may be another with a typing error: two edits or
// fewer, in a word long enough for that to be no accident.
func likely(word, meant string) bool {
	return len(meant) >= 5 && edits(word, meant) <= 2
}

// maxEditRunes bounds the quadratic work on words from a file.
const maxEditRunes = 64

// edits is the Levenshtein distance, with case ignored.
func edits(a, b string) int {
	s, t := runes(a), runes(b)
	row := make([]int, len(t)+1)
	for j := range row {
		row[j] = j
	}
	for i := range s {
		diagonal := row[0]
		row[0] = i + 1
		for j := range t {
			cost := 1
			if s[i] == t[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(t)]
}

func runes(s string) []rune {
	r := []rune(strings.ToLower(s))
	return slices.Clip(r[:min(len(r), maxEditRunes)])
}
