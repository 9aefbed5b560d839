package docs

// This file measures the words of comments and pages.

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Words which a reader has to resolve. The goal, for comments and pages alike, is the
// measure of database/sql, net/http, raft and river: 12, 15, 1.1 and 0.2 in 1,000 words.
var references = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\b(it|its)\b`),
	regexp.MustCompile(`(?i)\b(that|which)\b`),
	regexp.MustCompile(`(?i)\b(those|these|whoever|whatever)\b`),
	regexp.MustCompile(`(?i)\b(nobody|somebody|everybody)\b`),
}

// TestWordsStayWithinLimits measures the references in 1,000 words, and the words of the
// longest paragraph. A limit is never raised.
func TestWordsStayWithinLimits(t *testing.T) {
	t.Parallel()
	comments, prose := texts(t)
	for _, c := range []struct {
		what    string
		texts   []string
		limits  []float64 // of the references
		longest int
	}{
		{"comments", comments, []float64{12, 15, 1, 0.2}, 175},
		{"pages", prose, []float64{12, 15, 1.1, 0.2}, 180},
	} {
		all := strings.Join(c.texts, "\n\n")
		count := float64(len(regexp.MustCompile(`[\pL']+`).FindAllString(all, -1)))
		for i, words := range references {
			rate := 1000 * float64(len(words.FindAllString(all, -1))) / count
			assert.LessOrEqual(t, rate, c.limits[i], "%s: %s in 1,000 words", c.what, words)
			t.Logf("%s: %s: %.2f", c.what, words, rate)
		}
		paragraphs := regexp.MustCompile(`\n\s*\n|\n *(- |\d+\. |\|)`).Split(all, -1)
		longest := slices.MaxFunc(paragraphs, func(a, b string) int { return len(strings.Fields(a)) - len(strings.Fields(b)) })
		assert.LessOrEqual(t, len(strings.Fields(longest)), c.longest, "%s: the longest paragraph: %s", c.what, longest)
	}
}

// texts returns the comments of all Go files, and the pages without their code.
func texts(t *testing.T) (comments, prose []string) {
	t.Helper()
	code := regexp.MustCompile("(?ms)^```.*?^```$|<!--.*?-->|`[^`\n]*`|\\]\\([^)]*\\)")
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git"):
			return fs.SkipDir
		case path.Ext(name) == ".md":
			text, err := os.ReadFile(path.Join(root, name))
			prose = append(prose, code.ReplaceAllString(string(text), " x "))
			return err
		case path.Ext(name) == ".go":
			file, err := parser.ParseFile(token.NewFileSet(), path.Join(root, name), nil, parser.ParseComments)
			require.NoError(t, err)
			for _, group := range file.Comments {
				comments = append(comments, group.Text())
			}
		}
		return nil
	})
	require.NoError(t, err)
	return comments, prose
}
