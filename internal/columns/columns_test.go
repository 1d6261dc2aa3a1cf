package columns

import (
	"strings"
	"testing"
)

func TestPad(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"", "......"},
		{"talker", "talker"},
		{"vocoder", "vocoder"},
		{"größe", "größe."},
		{"gro\u0308ße", "gro\u0308ße."}, // a letter and a mark
		{"思考者", "思考者"},
		{"声", "声...."},
		{"ｱｲ", "ｱｲ...."}, // half width
		{"Ａ", "Ａ...."},   // full width
		{"한국", "한국.."},
		{"→─", "→─...."}, // ambiguous
		{"🚀", "🚀...."},
		{"\xff", "\xff....."},
	} {
		want := strings.ReplaceAll(tc.want, ".", " ")
		if got := Pad(tc.text, 6); got != want {
			t.Errorf("%q: %q, want %q", tc.text, got, want)
		}
	}
}
