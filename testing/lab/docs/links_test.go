package docs

// This file checks the links of the pages.

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pending are pages possibly missing.
var pending = []string{"CONTRIBUTING.md", "LICENSE", "SECURITY.md"}

func TestLinksResolve(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t, "*.md", "docs/*.md") {
		p.links = slices.DeleteFunc(p.links, func(l link) bool {
			_, err := os.Stat(filepath.Join(root, l.target))
			return slices.Contains(pending, l.target) && err != nil
		})
		for _, fault := range brokenLinks(p) {
			t.Error(fault)
		}
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	t.Parallel()
	p := scratch(t, `# A title, of sorts

[good](#a-title-of-sorts) [good](scratch.md#a-title-of-sorts-1) [good](https://example.org/nowhere)

[gone](gone.md) [no such heading](#elsewhere) ![gone](gone.svg)

# A title, of sorts
`)
	require.Equal(t, []string{
		"scratch.md:5: gone.md does not exist",
		"scratch.md:5: #elsewhere: no such heading",
		"scratch.md:5: gone.svg does not exist",
	}, brokenLinks(p))
}

func TestEveryPageIsLinkedFromREADME(t *testing.T) {
	t.Parallel()
	readme := pages(t, "README.md")[0]
	for _, p := range pages(t, "docs/*.md") {
		target := "docs/" + filepath.Base(p.path)
		require.True(t, slices.ContainsFunc(readme.links, func(l link) bool { return strings.HasPrefix(l.target, target) }), target)
	}
}

// brokenLinks returns the links of a page that lead nowhere, with their lines. It does not
// follow links out of the repository.
func brokenLinks(p *page) (faults []string) {
	fault := func(l link, format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s:%d: %s", filepath.Base(p.path), l.line, fmt.Sprintf(format, args...)))
	}
	for _, l := range p.links {
		target, err := url.Parse(l.target)
		if err != nil {
			fault(l, "%v", err)
			continue
		}
		if target.Scheme != "" {
			continue
		}
		to := p
		if target.Path != "" {
			path := filepath.Join(filepath.Dir(p.path), filepath.FromSlash(target.Path))
			if _, err := os.Stat(path); err != nil {
				fault(l, "%s does not exist", l.target)
				continue
			}
			if target.Fragment == "" {
				continue
			}
			if to, err = readPage(path); err != nil {
				fault(l, "%s: %v", l.target, err)
				continue
			}
		}
		if !to.anchors[target.Fragment] {
			fault(l, "%s: no such heading", l.target)
		}
	}
	return faults
}
