package docs

// This file parses the pages.

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// root is the root of the repository. The path is a link, because the go command looks for
// dependencies of tests only in the module, and would otherwise take a cached result for
// changed pages.
const root = "testdata/root"

// page is a Markdown file.
type page struct {
	path    string // absolute
	blocks  []block
	links   []link
	anchors map[string]bool
	broken  []string // faults of the page itself, with their lines
}

// block is a fenced block of code.
type block struct {
	page     string // the base name of the file
	line     int    // of the first line of code
	language string
	code     string
	excuse   string // why not run, if a comment says so
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// link is the target of a link or an image.
type link struct {
	line   int
	target string
}

var notRun = regexp.MustCompile(`(?s)^<!--\s*not run:\s*(.+?)\s*-->\s*$`)

// readPage parses a Markdown file as GitHub does.
func readPage(path string) (*page, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := &page{path: path, anchors: map[string]bool{}}
	lineAt := func(offset int) int { return 1 + bytes.Count(source[:offset], []byte("\n")) }
	line := 1 // of the last node with a known line
	root := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	err = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		if n.Type() == ast.TypeBlock && n.Lines().Len() > 0 {
			line = lineAt(n.Lines().At(0).Start)
		}
		switch n := n.(type) {
		case *ast.Heading:
			p.addAnchor(n.Lines().Value(source))
		case *ast.Link:
			p.links = append(p.links, link{line, string(n.Destination)})
		case *ast.Image:
			p.links = append(p.links, link{line, string(n.Destination)})
		case *ast.CodeBlock:
			p.broken = append(p.broken, fmt.Sprintf("%s:%d: an indented block: use a fence, and say the language", filepath.Base(path), line))
		case *ast.FencedCodeBlock:
			b := block{filepath.Base(path), line, string(n.Language(source)), string(n.Lines().Value(source)), ""}
			if comment, ok := n.PreviousSibling().(*ast.HTMLBlock); ok {
				if m := notRun.FindSubmatch(comment.Lines().Value(source)); m != nil {
					b.excuse = string(m[1])
				}
			}
			p.blocks = append(p.blocks, b)
		}
		return ast.WalkContinue, nil
	})
	return p, err
}

// markup is the part of a heading's text missing in the anchor, beside punctuation.
var markup = regexp.MustCompile(`\]\([^)]*\)`)

// addAnchor adds GitHub's anchor of a heading.
func (p *page) addAnchor(heading []byte) {
	slug := strings.Map(func(r rune) rune {
		switch {
		case r == ' ' || r == '-':
			return '-'
		case r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, markup.ReplaceAllString(strings.TrimSpace(string(heading)), ""))
	anchor := slug
	for i := 1; p.anchors[anchor]; i++ {
		anchor = fmt.Sprintf("%s-%d", slug, i)
	}
	p.anchors[anchor] = true
}

// pages returns the pages whose paths, seen from the root, match the patterns.
func pages(t *testing.T, patterns ...string) []*page {
	t.Helper()
	var found []*page
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, paths, "%s: no page", pattern)
		for _, path := range paths {
			path, err := filepath.Abs(path)
			require.NoError(t, err)
			p, err := readPage(path)
			require.NoError(t, err)
			found = append(found, p)
		}
	}
	return found
}

// manual returns the pages whose blocks are run.
func manual(t *testing.T) []*page { return pages(t, "README.md", "docs/*.md") }

// scratch returns a page with the text.
func scratch(t *testing.T, text string) *page {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scratch.md")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	p, err := readPage(path)
	require.NoError(t, err)
	return p
}
