package main

// This file has the command top: a live view of locks and contenders.

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/lockpool/lockpool"
)

func topCommand(c *connection) *cobra.Command {
	return &cobra.Command{
		Use:   "top [PREFIX]",
		Short: "Watch locks live, the most contended first",
		Long: `Top shows the locks that have a holder or a waiter, all or those below PREFIX, the most
contended first, and who blocks whom in the selected one. It looks at most once a
second, and for at most a tenth of the time.

Keys: up and down move, enter shows a lock's holders and waiters, escape goes back, / and
a text show only locks with the text in the name, r asks for the lock back and b takes it
by force (both ask first), q quits.`,
		Example:           "  lockpool top\n  lockpool top orders",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.complete,
		RunE: classified(func(_ *cobra.Command, args []string) error {
			if !term.IsTerminal(os.Stdin.Fd()) || !term.IsTerminal(os.Stdout.Fd()) {
				return misused("top needs a terminal; use lockpool ls or lockpool show")
			}
			pool, err := c.visit()
			if err != nil {
				return err
			}
			defer pool.Close()
			t := &top{server: c, pool: pool, prefix: strings.Join(args, "")}
			first := t.look().(survey)
			if first.err != nil {
				return first.err
			}
			t.update(first)
			_, err = tea.NewProgram(t).Run()
			return err
		}),
	}
}

// top is the state of lockpool top. It is a tea.Model: bubbletea calls Update and View one
// after the other, and runs the commands returned by Update on other goroutines.
type top struct {
	server *connection
	pool   *lockpool.Pool
	prefix string

	latest   survey // the last successful one, with the error of a later one
	filter   string // in the names of the locks in the list
	typing   bool   // the filter
	forest   *forest
	selected string // the lock with the cursor
	shown    bool   // the selected lock fills the screen
	node     string // the contender with the cursor, if shown

	asked  []lockpool.Contender // the targets of a demand awaiting confirmation
	demand demand
	status string // what came of the last demand

	now           time.Time
	width, height int
}

type (
	tick  struct{}
	acted struct{ text string }
)

// look makes a survey.
func (t *top) look() tea.Msg {
	s := surveyOf(t.server, t.pool, t.prefix, t.latest.background)
	slices.SortFunc(s.queues, byContention)
	return s
}

func (t *top) lookLater() tea.Cmd {
	return tea.Tick(t.latest.rest(), func(time.Time) tea.Msg { return t.look() })
}

// clock makes durations grow on the screen.
func clock() tea.Cmd {
	return tea.Tick(time.Second, func(time.Time) tea.Msg { return tick{} })
}

// Init implements tea.Model.
func (t *top) Init() tea.Cmd { return tea.Batch(t.lookLater(), clock()) }

// Update implements tea.Model.
func (t *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	t.now = time.Now()
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		t.width, t.height = msg.Width, msg.Height
	case tick:
		return t, clock()
	case survey:
		t.update(msg)
		return t, t.lookLater()
	case acted:
		t.status = msg.text
	case tea.KeyPressMsg:
		return t, t.press(msg.String())
	}
	return t, nil
}

// update takes a survey over. An unsuccessful one leaves what was seen before.
func (t *top) update(s survey) {
	if s.err != nil {
		t.latest.err = s.err
		return
	}
	noteGrants(t.latest, s)
	t.latest, t.forest = s, newForest(s.graph, s.costs.Insights)
}

// press handles a key.
func (t *top) press(key string) tea.Cmd {
	if key == "ctrl+c" || key == "q" && t.asked == nil && !t.typing {
		return tea.Quit
	}
	if t.asked != nil {
		targets := t.asked
		t.asked = nil
		if key != "y" && key != "Y" {
			t.status = "Nothing was done."
			return nil
		}
		return t.act(t.selected, t.demand, targets)
	}
	t.status = ""
	if t.typing {
		t.typeFilter(key)
		return nil
	}
	page := max(1, t.height/2)
	switch key {
	case "up", "k":
		t.move(-1)
	case "down", "j":
		t.move(1)
	case "pgup":
		t.move(-page)
	case "pgdown":
		t.move(page)
	case "home", "g":
		t.move(-1 << 30)
	case "end", "G":
		t.move(1 << 30)
	case "enter":
		if q := t.lock(); q != nil && !t.shown {
			t.selected, t.shown, t.node = q.Name, true, ""
		}
	case "esc", "left", "h":
		if !t.shown {
			t.filter = ""
		}
		t.shown = false
	case "/":
		t.typing = !t.shown
	case "r":
		t.ask(revoking)
	case "b":
		t.ask(breaking)
	}
	return nil
}

// typeFilter handles a key while the filter is typed.
func (t *top) typeFilter(key string) {
	switch r := []rune(t.filter); {
	case key == "enter", key == "esc":
		t.typing = false
		if key == "esc" {
			t.filter = ""
		}
	case key == "backspace" && len(r) > 0:
		t.filter = string(r[:len(r)-1])
	case key == "space":
		t.filter += " "
	case len([]rune(key)) == 1:
		t.filter += key
	}
}

// locks returns the locks in the list.
func (t *top) locks() []lockpool.Queue {
	var all []lockpool.Queue
	for _, q := range t.latest.queues {
		if strings.Contains(q.Name, t.filter) {
			all = append(all, q)
		}
	}
	return all
}

// lock returns the selected lock, or nil if there is none. The cursor follows a lock to any
// place, and goes to the first lock if the lock is gone, unless the gone lock is the one
// shown.
func (t *top) lock() *lockpool.Queue {
	locks := t.locks()
	i := slices.IndexFunc(locks, func(q lockpool.Queue) bool { return q.Name == t.selected })
	switch {
	case i >= 0:
		return &locks[i]
	case t.shown:
		return &lockpool.Queue{Name: t.selected}
	case len(locks) == 0:
		return nil
	}
	return &locks[0]
}

// contenders returns the contenders of the selected lock in the order of the tree.
func contenders(q *lockpool.Queue) []lockpool.Contender {
	ordered := holders(*q)
	for _, c := range q.Contenders {
		if !c.Holds {
			ordered = append(ordered, c)
		}
	}
	return ordered
}

// current returns the contender with the cursor, or the first if gone, and the index.
func (t *top) current() (c lockpool.Contender, index int, ok bool) {
	all := contenders(t.lock())
	if len(all) == 0 {
		return c, 0, false
	}
	i := max(0, slices.IndexFunc(all, func(c lockpool.Contender) bool { return c.Node == t.node }))
	return all[i], i, true
}

// move moves the cursor.
func (t *top) move(by int) {
	q := t.lock()
	if q == nil {
		return
	}
	if t.shown {
		if _, i, ok := t.current(); ok {
			all := contenders(q)
			t.node = all[min(max(0, i+by), len(all)-1)].Node
		}
		return
	}
	locks := t.locks()
	i := slices.IndexFunc(locks, func(o lockpool.Queue) bool { return o.Name == q.Name })
	t.selected = locks[min(max(0, i+by), len(locks)-1)].Name
}

// ask asks whether to make a demand on the contender with the cursor, or, in the list of
// locks, on the holders.
func (t *top) ask(d demand) {
	q := t.lock()
	if q == nil {
		return
	}
	t.selected, t.demand = q.Name, d
	if !t.shown {
		t.asked = holders(*q)
	} else if c, _, ok := t.current(); ok {
		t.asked = []lockpool.Contender{c}
	}
	if len(t.asked) == 0 {
		t.asked, t.status = nil, "Nobody holds it."
	}
}

// act makes the confirmed demand.
func (t *top) act(name string, d demand, targets []lockpool.Contender) tea.Cmd {
	return func() tea.Msg {
		var said []string
		for _, c := range targets {
			if err := d.carryOut(t.pool, name, c); err != nil {
				said = append(said, oneLine(err))
			} else {
				said = append(said, d.report(name, c))
			}
		}
		return acted{strings.Join(said, "; ")}
	}
}

var (
	bold    = ansi.Style{}.Bold()
	reverse = ansi.Style{}.Reverse(true)
)

// View implements tea.Model.
func (t *top) View() tea.View {
	return tea.View{Content: t.screen(), AltScreen: true}
}

// screen returns a title, the content, and a line about keys, a question, or the result.
func (t *top) screen() string {
	if t.width < 20 || t.height < 4 {
		return ansi.Truncate("too small", t.width, "")
	}
	body := t.height - 2
	lines := []string{bold.Styled(t.cut(t.title()))}
	if t.shown {
		lines = append(lines, t.viewLock(body)...)
	} else {
		lines = append(lines, t.viewLocks(body)...)
	}
	for len(lines) < t.height-1 {
		lines = append(lines, "")
	}
	return strings.Join(append(lines, t.cut(t.footer())), "\n")
}

func (t *top) cut(s string) string { return ansi.Truncate(s, t.width, "…") }

func (t *top) title() string {
	which := ""
	if t.prefix != "" {
		which = " below " + quoted(t.prefix)
	}
	if t.filter != "" {
		which += " with " + strconv.Quote(t.filter)
	}
	return t.latest.title(t.locks(), which, t.now)
}

func (t *top) footer() string {
	switch {
	case len(t.asked) == 1:
		return t.demand.ask(t.selected, t.asked[0]) + " y/n"
	case len(t.asked) > 1:
		return fmt.Sprintf(t.demand.question, quoted(t.selected), count(len(t.asked), "holder")) + " y/n"
	case t.status != "":
		return t.status
	case t.typing:
		return "/" + t.filter + "_  enter keep  esc all locks"
	case t.shown:
		return "↑↓ move  r revoke  b break  esc back  q quit"
	}
	return "↑↓ move  enter show  / find  r revoke  b break  q quit"
}

// viewLocks returns the locks, and below them the tree of the selected one.
func (t *top) viewLocks(height int) []string {
	selected := t.lock()
	if selected == nil {
		if t.filter != "" {
			return []string{"No lock with " + strconv.Quote(t.filter) + " in the name has a holder or a waiter."}
		}
		return []string{"No lock has a holder or a waiter."}
	}
	locks := t.locks()
	listed := height - 1
	if height >= 9 { // there is room for both
		listed = min(len(locks), height/2-1)
	}
	cursor := slices.IndexFunc(locks, func(q lockpool.Queue) bool { return q.Name == selected.Name })
	first := window(len(locks), listed, cursor)
	rows := [][]string{{" ", "WAITERS", "WAITING", "HOLDERS", "HELD", "NAME", "HOLDER"}}
	for i, q := range locks[first:min(first+listed, len(locks))] {
		s := summarize(q)
		mark, holder := " ", ""
		if first+i == cursor {
			mark = ">"
		}
		if h := holders(q); len(h) > 0 {
			holder = who(h[0])
		}
		rows = append(rows, []string{
			mark, strconv.Itoa(s.waiters), waitedFor(t.now, s.waited), strconv.Itoa(s.holders), s.heldFor(t.now), t.name(q.Name), holder,
		})
	}
	lines := columns(rows, 1, 2, 3, 4)
	for i, l := range lines {
		if lines[i] = t.cut(l); first+i-1 == cursor {
			lines[i] = reverse.Styled(lines[i])
		}
	}
	if height < 9 {
		return lines
	}
	lines = append(lines, "", t.heading(selected))
	for _, l := range t.forest.tree(selected, t.now) {
		lines = append(lines, t.cut(l.text))
	}
	return lines[:min(len(lines), height)]
}

// name returns the name of a lock for the list. A long name loses the middle, because names
// differ at the end. The column of the holder gives way: the tree names the holder, too.
func (t *top) name(name string) string {
	const others, least = 39, 20
	name = quoted(name)
	most := max(least, t.width-others)
	if over := ansi.StringWidth(name) - most; over > 0 {
		head := ansi.Truncate(name, most/3, "")
		name = head + "…" + ansi.TruncateLeft(name, ansi.StringWidth(name)-(most-most/3-1), "")
	}
	return name
}

func (t *top) heading(q *lockpool.Queue) string {
	s := summarize(*q)
	return bold.Styled(t.cut(fmt.Sprintf("%s: %s, %s", quoted(q.Name), count(s.holders, "holder"), count(s.waiters, "waiter"))))
}

// viewLock returns the tree of the selected lock, and details of the contender with the
// cursor.
func (t *top) viewLock(height int) []string {
	q := t.lock()
	lines := []string{t.heading(q)}
	current, _, ok := t.current()
	var about []string
	if ok && height >= 10 {
		about = append([]string{""}, details(current)...)
	}
	tree := t.forest.tree(q, t.now)
	cursor := slices.IndexFunc(tree, func(l line) bool { return l.contender != nil && l.contender.Node == current.Node })
	shown := max(1, height-len(lines)-len(about))
	first := window(len(tree), shown, cursor)
	for i, l := range tree[first:min(first+shown, len(tree))] {
		text := t.cut("  " + l.text)
		if first+i == cursor {
			text = reverse.Styled(t.cut("> " + l.text))
		}
		lines = append(lines, text)
	}
	for len(lines) < height-len(about) {
		lines = append(lines, "")
	}
	for _, l := range about {
		lines = append(lines, t.cut(l))
	}
	return lines
}

// window returns the first of n lines to be shown on size lines, with the cursor among
// them.
func window(n, size, cursor int) int {
	return max(0, min(cursor-size/2, n-size))
}
