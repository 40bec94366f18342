// Before the first paint: the theme that was chosen, and that scripts run. Storage may be blocked; then it is the system's.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("nsqadmin.theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch {}
})();
