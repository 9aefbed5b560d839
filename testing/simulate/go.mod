module github.com/lockpool/lockpool/testing/simulate

go 1.25.0

require (
	github.com/ajstarks/svgo v0.0.0-20211024235047-1546f124cd8b
	github.com/anishathalye/porcupine v1.3.1
	github.com/lockpool/lockpool v0.1.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)
