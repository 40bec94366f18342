// Runs before the first paint: marks that scripts run, and sets the chosen theme. If storage is blocked, it stays the system's.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("nsqadmin.theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch {}
})();
