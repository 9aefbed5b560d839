package docs

// This file checks that the pages list every exported name.

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPagesListEveryName(t *testing.T) {
	t.Parallel()
	read := func(paths ...string) (text string) {
		for _, path := range paths {
			content, err := os.ReadFile(filepath.Join(root, path))
			require.NoError(t, err)
			text += string(content)
		}
		return text
	}
	for _, c := range []struct {
		file, name string // what finds a name there
		pages      []string
	}{
		{"errors.go", `(?m)^\t(Err\w+) += `, []string{"docs/guide.md"}},
		{"options.go", `(?m)^func (With\w+)\(`, []string{"docs/guide.md", "docs/telemetry.md"}},
		{"otel.go", `(?m)^func (With\w+)\(`, []string{"docs/telemetry.md"}},
		{"internal/telemetry/telemetry.go", `"(lockpool\.[a-z_.]+)"`, []string{"docs/telemetry.md"}},
		{"internal/telemetry/metrics.go", `"(lockpool\.[a-z_.]+)"`, []string{"docs/telemetry.md"}},
		{"examples/metrics/alerts.yml", `- alert: (\w+)`, []string{"docs/incident.md"}},
	} {
		names := regexp.MustCompile(c.name).FindAllStringSubmatch(read(c.file), -1)
		require.NotEmpty(t, names, c.file)
		text := read(c.pages...)
		for _, name := range names {
			listed := regexp.MustCompile(regexp.QuoteMeta(name[1]) + `\b`).MatchString(text)
			assert.True(t, listed, "%s of %s is not in %s", name[1], c.file, c.pages)
		}
	}
}
