package layers

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// TestLinksOfPages: what a page links to is there, the heading too. Links that
// leave the repository are not followed.
func TestLinksOfPages(t *testing.T) {
	root := moduleRoot(t)
	for _, page := range pagesOf(t, root) {
		for _, link := range brokenLinks(t, page) {
			t.Errorf("%s: nothing is at %s", strings.TrimPrefix(page, root+string(filepath.Separator)), link)
		}
	}
}

func TestLinksCanBeBroken(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "a.md")
	text := "# A `b`, c\n\n[1](a.md) [2](#a-b-c) [3](a.md#a-b-c) [4](b.md)\n[5](#d) [6](a.md#d)\n```\n# no heading\n[7](no-link)\n```\n[8](#no-heading) [9](https://example.org/x)\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(brokenLinks(t, page), " "), "b.md #d a.md#d #no-heading"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

var (
	linked  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?\\n *```$")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
)

func brokenLinks(t *testing.T, page string) (broken []string) {
	t.Helper()
	for _, m := range linked.FindAllStringSubmatch(readPage(t, page), -1) {
		if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
			continue
		}
		path, anchor, anchored := strings.Cut(m[1], "#")
		target := page
		if path != "" {
			target = filepath.Join(filepath.Dir(page), filepath.FromSlash(path))
		}
		_, err := os.Stat(target)
		if err != nil || anchored && filepath.Ext(target) == ".md" && !anchors(readPage(t, target))[anchor] {
			broken = append(broken, m[1])
		}
	}
	return broken
}

// readPage reads a page without its blocks of code.
func readPage(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fenced.ReplaceAllString(strings.ReplaceAll(string(b), "\r\n", "\n"), "")
}

// anchors are what the headings of a page are linked by, as hosts of
// repositories make them.
func anchors(page string) map[string]bool {
	all := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		all[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])] = true
	}
	return all
}
