package architecture

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	dropped      = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	fences       = regexp.MustCompile("(?ms)^```.*?^```")
)

// Links between documents lead somewhere.
func TestDocumentLinks(t *testing.T) {
	dir := project(t).dir
	files(t, ".md", func(name string, text []byte) {
		body := fences.ReplaceAllString(string(text), "")
		for _, m := range markdownLink.FindAllStringSubmatch(body, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path := filepath.Join(dir, name)
			if target != "" {
				path = filepath.Join(filepath.Dir(path), target)
			}
			info, err := os.Stat(path)
			if err != nil || strings.HasPrefix(target, "/") {
				t.Errorf("%s: the link %s leads nowhere", name, m[1])
				continue
			}
			if anchor != "" && !info.IsDir() && !slices.Contains(anchors(t, path), anchor) {
				t.Errorf("%s: %s has no heading for %s", name, target, m[1])
			}
		}
	})
}

// anchors lists the names that the headings of a document get.
func anchors(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range heading.FindAllStringSubmatch(fences.ReplaceAllString(string(text), ""), -1) {
		name := dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[1])), "")
		out = append(out, strings.ReplaceAll(name, " ", "-"))
	}
	return out
}

// What a stranger looks for is there.
func TestDocumentsExist(t *testing.T) {
	dir := project(t).dir
	for _, name := range []string{
		"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs/README.md", "docs/architecture.md", "docs/replication.md",
		"docs/operations.md", "docs/limits.md", "docs/format", "docs/protocol",
	} {
		if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name))); err != nil {
			t.Errorf("%s is missing", name)
		}
	}
}

var documentName = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md\b`)

// Documents that the code names are there.
func TestNamedDocumentsExist(t *testing.T) {
	dir := project(t).dir
	files(t, ".go", func(name string, source []byte) {
		for _, document := range documentName.FindAllString(string(source), -1) {
			if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(document))); err != nil {
				t.Errorf("%s names %s, which is missing", name, document)
			}
		}
	})
}

// ruleNumber finds references like "rule 13", "rules 2 and 10", "rules 2, 16" in comments.
var ruleNumber = regexp.MustCompile(`\brules? (\d+)(?:(?:, | and )(\d+))*`)

// Comments refer to rules that docs/replication.md has.
func TestRulesExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(project(t).dir, "docs", "replication.md"))
	if err != nil {
		t.Fatal(err)
	}
	digits := regexp.MustCompile(`\d+`)
	files(t, ".go", func(name string, source []byte) {
		for _, m := range ruleNumber.FindAllString(string(source), -1) {
			for _, n := range digits.FindAllString(m, -1) {
				if !strings.Contains(string(text), "\n"+n+". ") {
					t.Errorf("%s: %q: docs/replication.md has no rule %s", name, m, n)
				}
			}
		}
	})
}
