//go:build unix

package main

// This file tests the page of serve in Chromium.

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
)

var (
	screenshots = flag.String("screenshots", "", "`directory` for pictures of the page of lockpool serve")
	frames      = flag.Duration("frames", 0, "how long to measure frames of the page with 1,000 locks")
)

// browser is a page in Chromium.
type browser struct {
	s   *shell
	ctx context.Context
}

// browse opens a page. The test fails if the console has a message other than the expected.
func (s *shell) browse(url string, expected ...string) *browser {
	s.Helper()
	path, err := exec.LookPath("chromium")
	require.NoError(s, err, "install Debian's package chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox) // root has no sandbox
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	s.Cleanup(stop)
	b := &browser{s: s}
	b.ctx, stop = chromedp.NewContext(allocator)
	b.run(chromedp.EmulateViewport(1280, 800))
	var messages []string
	read := make(chan struct{})
	console := chromedp.Console(b.ctx)
	go func() { // ends with the browser
		defer close(read)
		for m, err := range console {
			if err == nil {
				text := m.String() + " " + m.URL
				if !slices.ContainsFunc(expected, func(e string) bool { return strings.Contains(text, e) }) {
					messages = append(messages, text)
				}
			}
		}
	}()
	s.Cleanup(func() {
		assert.NoError(s, chromedp.Cancel(b.ctx))
		stop()
		<-read
		require.Empty(s, messages)
	})
	b.run(chromedp.Navigate(url))
	return b
}

func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.s.Helper()
	ctx, stop := context.WithTimeout(b.ctx, locktest.Patience)
	defer stop()
	if chromedp.FromContext(b.ctx).Browser == nil {
		ctx = b.ctx // of the browser
	}
	require.NoError(b.s, chromedp.Do(ctx, actions...))
}

// call is a command of the browser's protocol.
func call[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// eval returns the value of an expression.
func eval[T any](b *browser, expression string) T {
	b.s.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(b.s, err)
	return value
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.s.Helper()
	b.s.Until(func() bool { return eval[bool](b, expression) }, "%s", expression)
}

// tabTo presses Tab until the focused element has the text.
func (b *browser) tabTo(text string) {
	b.s.Helper()
	for range 50 {
		b.run(chromedp.KeyEvent(kb.Tab))
		if eval[string](b, "document.activeElement.textContent") == text {
			require.Equal(b.s, "solid", eval[string](b, "getComputedStyle(document.activeElement).outlineStyle"), "the focus is seen")
			return
		}
	}
	require.FailNow(b.s, "Tab does not lead to "+text)
}

func TestTokenIsTyped(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env = append(s.env, "LOCKPOOL_SERVE_TOKEN=correct horse battery")
	b := s.browse(s.serve(), "401 (Unauthorized)", "Password forms should have")
	b.until(`document.activeElement.name === "token"`)
	b.run(chromedp.KeyEvent("correct horse battery" + kb.Enter))
	b.until(isLive)
}

const isLive = `document.getElementById("live")?.textContent === "Live."`

func TestPageNeedsNoMouse(t *testing.T) {
	t.Parallel() // the browser waits
	s := newShell(t)
	conn := s.Dial()
	s.contend(conn)
	b := s.browse(s.serve("--allow-changes"))
	b.until(isLive)
	b.tabTo("orders/42")
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector("h1")?.textContent === "orders/42: 1 holder, 2 waiters" && ` + isLive)
	b.tabTo("Revoke")
	b.tabTo("Break")
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector("dialog").open`)
	require.Equal(t, "Take orders/42 from billing, process 101 on web1?", eval[string](b, `document.getElementById("question").textContent`))
	b.run(chromedp.KeyEvent(kb.Enter)) // No
	b.until(`!document.querySelector("dialog").open && document.activeElement.textContent === "Break"`)
	require.Len(t, s.Children("orders/42"), 3)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.tabTo("Yes")
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector("[data-said]").textContent === "orders/42 is taken from billing, process 101 on web1\n"`)
	b.until(`document.querySelector("h1")?.textContent === "orders/42: 1 holder, 1 waiter"`)
	require.Len(t, s.Children("orders/42"), 2)

	// The list follows, and the focus stays on a lock that moves.
	b.tabTo("All locks") // around the end of the page
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(isLive + ` && document.querySelectorAll("tbody a").length === 3`)
	b.tabTo("cron/backup")
	for pid := 606; pid < 616; pid++ {
		s.contender(conn, "cron/backup", "cron", pid)
	}
	b.until(`document.querySelector("tbody a")?.textContent === "cron/backup"`)
	require.Equal(t, "cron/backup", eval[string](b, "document.activeElement.textContent"))
}

// thousand makes 1,000 contended locks with two waiters each.
func (s *shell) thousand(conn *zk.Conn) {
	s.contender(conn, "big/first", "first", 101)
	for i := 0; i < 1000; i += 50 {
		var ops []any
		for n := i; n < i+50; n++ {
			path := fmt.Sprintf("%s/big/%03d", s.Chroot, n)
			ops = append(ops, &zk.CreateRequest{Path: path, Acl: zk.WorldACL(zk.PermAll)})
			for c := range 3 {
				data := fmt.Sprintf(`{"owner":"worker","host":"web%d","pid":%d}`, c, 100+n)
				ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("%s/_c_%032x-lock-", path, 3*n+c), Data: []byte(data),
					Flags: zk.FlagEphemeral | zk.FlagSequence, Acl: zk.WorldACL(zk.PermAll)})
			}
		}
		_, err := conn.Multi(ops...)
		require.NoError(s, err)
	}
}

// An update of 1,000 locks changes texts only, in the elements that are there.
func TestPageShowsAThousandLocks(t *testing.T) {
	t.Parallel() // the browser waits
	s := newShell(t)
	s.thousand(s.Dial())
	b := s.browse(s.serve("big"))
	b.until(isLive + ` && document.querySelectorAll("tbody tr").length === 1000`)
	require.Equal(t, "1 more are not shown; give lockpool serve a prefix.", eval[string](b, `document.querySelector("[data-a='text:More']").textContent`))
	eval[bool](b, `
		globalThis.changes = 0;
		new MutationObserver((all) => { changes += all.length; }).observe(document.querySelector("tbody"), { childList: true });
		globalThis.title = 0;
		new MutationObserver(() => { title++; }).observe(document.querySelector("tbody tr [data-a='text:cost']"), { childList: true });
		true`)
	b.until("title >= 5")
	require.Zero(t, eval[int](b, "changes"), "rows added, removed, or moved")
	if *frames > 0 {
		longest := eval[[]float64](b, fmt.Sprintf(`new Promise((resolve) => {
			const all = [], tasks = [], begun = performance.now(), updates = title;
			new PerformanceObserver((list) => tasks.push(...list.getEntries().map((e) => e.duration))).observe({ type: "longtask" });
			let last = begun;
			requestAnimationFrame(function frame(now) {
				all.push(now - last);
				last = now;
				if (now - begun < %d) requestAnimationFrame(frame);
				else resolve([title - updates, all.length, ...all.sort((a, b) => b - a).slice(0, 5), ...tasks.sort((a, b) => b - a).slice(0, 8), tasks.length]);
			});
		})`, frames.Milliseconds()))
		t.Logf("%.0f updates, %.0f frames, the longest %.0f ms", longest[0], longest[1], longest[2:])
	}
}

func TestPageFitsIntoEveryWindow(t *testing.T) {
	t.Parallel() // the browser waits
	s := newShell(t)
	s.contend(s.Dial())
	s.deadlock(s.Dial())
	s.costs(s.Dial())
	s.contender(s.Dial(), "a-long-name-without-a-place-for-a-line-break/"+fmt.Sprintf("%064d", 1), "billing", 101)
	url := s.serve("--allow-changes")
	b := s.browse(url)
	for page, address := range map[string]string{"list": "", "lock": "?lock=orders/42"} {
		for _, width := range []int64{1280, 360} {
			for _, scheme := range []string{"light", "dark"} {
				b.run(
					chromedp.EmulateViewport(width, 800),
					call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}),
					chromedp.Navigate(url+address),
				)
				b.until(isLive)
				require.LessOrEqual(t, eval[int64](b, "document.documentElement.scrollWidth"), width)
				back := map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
				require.Equal(t, back, eval[string](b, "getComputedStyle(document.body).backgroundColor"))
				if *screenshots != "" {
					png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(filepath.Join(*screenshots, fmt.Sprintf("serve-%s-%d-%s.png", page, width, scheme)), png, 0o600))
				}
			}
		}
	}
}

// Without the script the page says the same, with a link to reload.
func TestPageNeedsNoScript(t *testing.T) {
	t.Parallel() // the browser waits
	s := newShell(t)
	conn := s.Dial()
	s.contend(conn)
	b := s.browse("about:blank")
	b.run(call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}), chromedp.Navigate(s.serve("--allow-changes")))
	b.run(chromedp.WaitVisible(`//a[text()="orders/42"]`), chromedp.WaitNotPresent(`//a[text()="later"]`))
	s.contender(conn, "later", "cron", 606)
	b.s.Until(func() bool { // a look may be fresh
		b.run(chromedp.Click(`//a[text()="Reload"]`), chromedp.WaitVisible("table"))
		found, err := chromedp.Run(b.ctx, chromedp.Nodes(`//a[text()="later"]`, chromedp.AtLeast(0)))
		require.NoError(t, err)
		return len(found) > 0
	}, "a reloaded page")
	b.run(chromedp.Click(`//a[text()="orders/42"]`), chromedp.WaitVisible(`//h1[text()="orders/42: 1 holder, 2 waiters"]`), chromedp.WaitNotVisible("button"))
}
