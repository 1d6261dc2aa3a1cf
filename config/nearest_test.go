package config

import "testing"

func TestNearest(t *testing.T) {
	tests := []struct {
		word       string
		candidates []string
		want       string
	}{
		{"replcas", []string{"handler", "replicas", "replay"}, "replicas"},
		{"REPLICAS", []string{"replay", "replicas"}, "replicas"},
		{"", []string{"ab", "a"}, "a"},
		{"x", nil, ""},
		{"xyz", []string{"abc", "def"}, "abc"},
	}
	for _, tt := range tests {
		if got := nearest(tt.word, tt.candidates); got != tt.want {
			t.Errorf("nearest(%q, %q) = %q, want %q", tt.word, tt.candidates, got, tt.want)
		}
	}
}

func TestEdits(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"ab", "ba", 2}, {"größe", "grösse", 2}}
	for _, tt := range tests {
		if got, back := edits(tt.a, tt.b), edits(tt.b, tt.a); got != tt.want || back != tt.want {
			t.Errorf("edits(%q, %q) = %d and %d, want %d", tt.a, tt.b, got, back, tt.want)
		}
	}
}

func TestParseSize(t *testing.T) {
	tests := []struct {
		text string
		want int64
		ok   bool
	}{
		{"1", 1, true},
		{"64MiB", 64 << 20, true},
		{"64 MiB", 64 << 20, true},
		{"2kB", 2000, true},
		{"3GB", 3e9, true},
		{"8B", 8, true},
		{"8388607TiB", 8388607 << 40, true},
		{"8388608TiB", 0, false},
		{"0MiB", 0, true},
		{"-1MiB", 0, false},
		{"+1MiB", 0, false},
		{"1.5MiB", 0, false},
		{"64  MiB", 0, false},
		{"64MIB", 0, false},
		{"MiB", 0, false},
		{"", 0, false},
	}
	for _, tt := range tests {
		if got, ok := parseSize(tt.text); got != tt.want || ok != tt.ok {
			t.Errorf("parseSize(%q) = %d, %v; want %d, %v", tt.text, got, ok, tt.want, tt.ok)
		}
	}
}
